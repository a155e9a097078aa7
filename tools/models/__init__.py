"""Tiny random-weight GGUFs of llama.cpp's architectures, made by the tests.

    from tools.models import Shape, write_model
    write_model("tiny.gguf", "qwen3moe", Shape(n_layer=3, n_expert=5, types={"*_exps": "Q8_0"}))

or ``python -m tools.models qwen3moe tiny.gguf --layers 3 --experts 5 --type '*_exps=Q8_0'``.
"""

from tools.models.adapter import write_adapter
from tools.models.exchanged import exchange_experts
from tools.models.families import FAMILIES
from tools.models.hybrid import HYBRIDS
from tools.models.shape import Shape
from tools.models.told import TOLD
from tools.models.writer import write_model

FAMILIES.update(HYBRIDS)
FAMILIES.update(TOLD)  # type: ignore[arg-type]  # a Told answers as a Family does

__all__ = ["FAMILIES", "TOLD", "Shape", "exchange_experts", "write_adapter", "write_model"]
