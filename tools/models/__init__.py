"""Make tiny random-weight GGUFs of llama.cpp's architectures, for the tests.

from tools.models import Shape, write_model
write_model("tiny.gguf", "qwen3moe", Shape(n_layer=3, n_expert=5, types={"*_exps": "Q8_0"}))
"""

from tools.models.families import FAMILIES
from tools.models.loader_families import DRAFT_FAMILIES, LOADER_FAMILIES
from tools.models.projector import write_projector
from tools.models.shape import Shape
from tools.models.variants import exchange_experts, write_adapter
from tools.models.writer import write_model

FAMILIES.update(LOADER_FAMILIES)  # type: ignore[arg-type]  # a LoaderFamily answers as a Family does

__all__ = [
    "DRAFT_FAMILIES", "FAMILIES", "LOADER_FAMILIES", "Shape", "exchange_experts", "write_adapter",
    "write_model", "write_projector",
]  # fmt: skip
