"""The makers of tiny models make correct files, because other tests rely on them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants

from tests.conftest import TinyModel
from tests.forked import run_worker
from tools.compare import Case, Job, Settings
from tools.models import FAMILIES, LOADER_FAMILIES, Shape, write_model
from tools.models.loader_families import LoaderFamily
from tools.models.weights import random_weights

TYPES = [
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "IQ1_S"),
]


def test_the_same_shape_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    write_model(one, "qwen3moe", Shape(seed=5))
    write_model(two, "qwen3moe", Shape(seed=5))
    write_model(other, "qwen3moe", Shape(seed=6))
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()


def test_shapes_and_types_are_as_asked(tmp_path: Path) -> None:
    shape = Shape(
        n_layer=3,
        n_expert=7,
        n_ff_exp=160,
        types={"*": "Q8_0", "*_exps": "Q4_0", "blk.1.ffn_down_exps": "F16", "blk.2.attn_norm": "F16"},
    )
    path = write_model(tmp_path / "m.gguf", "qwen3moe", shape)
    tensors = {t.name: t for t in GGUFReader(path).tensors}
    types = {name: t.tensor_type.name for name, t in tensors.items()}
    assert tensors["blk.0.ffn_up_exps.weight"].shape.tolist() == [64, 160, 7]
    assert types["blk.0.ffn_down_exps.weight"] == "Q4_0"
    assert types["blk.1.ffn_down_exps.weight"] == "F16"
    assert types["token_embd.weight"] == "Q8_0"
    assert types["blk.0.ffn_gate_inp.weight"] == types["blk.0.attn_norm.weight"] == "F32"
    assert types["blk.2.attn_norm.weight"] == "F16"


@pytest.mark.parametrize("name", TYPES)
def test_weights_have_the_spread_asked_for(name: str) -> None:
    kind = GGMLQuantizationType[name]
    rng = np.random.default_rng(1)
    data = random_weights(rng, (64, 512), kind, 0.05)
    numbers = quants.dequantize(data, kind)
    assert numbers.shape == (64, 512)
    assert np.isfinite(numbers).all()
    # With three values a weight, the distribution is only roughly normal.
    low = 0.5 if name in ("TQ1_0", "TQ2_0") else 0.85
    assert low < float(np.sqrt(np.mean(np.square(numbers)))) / 0.05 < 2 - low
    assert abs(float(numbers.mean())) < 0.02


def test_impossible_shapes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(ValueError, match=r"rows of 64 do not divide into blocks of 256 \(Q4_K\)"):
        write_model(path, "qwen3moe", Shape(types={"*": "Q4_K"}))
    with pytest.raises(ValueError, match="unknown family"):
        write_model(path, "no such")
    with pytest.raises(ValueError, match="unknown weight type"):
        write_model(path, "qwen3moe", Shape(types={"*": "Q17"}))
    with pytest.raises(ValueError, match="has no option"):
        write_model(path, "qwen3moe", Shape(options={"merged": 1}))


def test_every_family_decodes_on_the_stock_library(
    tiny_model: TinyModel, reference_lib: Path, tmp_path: Path
) -> None:
    """Each model loads, decodes, and gives logits that are finite, spread out, and not all alike."""
    variants = {name: tiny_model(name) for name in FAMILIES}
    v3 = {"merged": 1, "sigmoid": 1, "q_rank": 32}
    variants["deepseek2 v3"] = tiny_model("deepseek2", n_expert=8, n_group=4, n_group_used=2, options=v3)
    variants["deepseek2 old"] = tiny_model("deepseek2", options={"absorbed": 0})
    job = Job(
        tuple(
            Case(
                name,
                str(path),
                Settings(embeddings=FAMILIES[name.split()[0]].embeds),
                script="full"
                if FAMILIES[name.split()[0]].rewinds and name not in LOADER_FAMILIES
                else "short",
            )
            for name, path in variants.items()
        )
    )
    result = run_worker("reference", job, tmp_path, lib_path=reference_lib)
    for (name, _), steps in result.logits.items():
        logits = np.concatenate(list(steps.values()))
        assert np.isfinite(logits).all(), name
        assert 0.5 < logits.std() < 10, name
        assert len(set(logits.argmax(axis=1).tolist())) > math.sqrt(len(logits)), name


def test_the_loader_tells_what_it_wants(tiny_model: TinyModel) -> None:
    """The loader reports its tensors for any shape. A model of other sizes needs another query."""
    path = tiny_model("qwen35moe", n_layer=2, n_expert=7, n_ff_exp=160)
    tensors = {t.name: t.shape.tolist() for t in GGUFReader(path).tensors}
    assert tensors["blk.1.ffn_down_exps.weight"] == [160, 64, 7]
    assert "blk.0.ssm_a" in tensors
    assert "blk.1.attn_q.weight" in tensors
    assert "blk.2.attn_norm.weight" not in tensors


def test_what_the_loader_refuses_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"key not found in model: deepseek4\.attention\.q_lora_rank"):
        LoaderFamily("deepseek4").tensors(Shape(), 0)
