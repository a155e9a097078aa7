"""The split model in torch, and the training of its prediction layer, on a tiny model without language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, quants

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.scoring import score
from tools.models import Shape, write_model
from tools.split_dense.__main__ import main

torch = pytest.importorskip("torch", reason="the prediction layer is trained with torch")
SHAPE = Shape(n_ff=256, n_layer=2)
WORDS = ["--experts", "6", "--shared", "2", "--used", "3", "--threads", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a tiny split model with a prediction layer, and that layer's weights after the training."""
    from tools.split_dense import prediction

    folder = tmp_path_factory.mktemp("made")
    dense = write_model(folder / "dense.gguf", "llama", SHAPE)
    (folder / "text").write_text("the cat sat on the mat. " * 100)
    words = ["--model", str(dense), "--text", str(folder / "text"), "--mtp", str(folder / "kept"), *WORDS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "STEPS", 4)
        patch.setattr(prediction, "LENGTH", 12)
        patch.setattr(prediction, "MORE_QUESTIONS", ("Why?",) * 20)
        patch.setattr(prediction, "MODULES", ("bisect",))
        main([str(folder / "split.gguf"), *words])
    return folder / "split.gguf", torch.load(folder / "kept" / "layer.pt", weights_only=True)["weights"]


def test_torch_computes_what_llama_cpp_computes(made):
    """They round otherwise, so now and then a router changes its choice at a near tie."""
    from tools.split_dense.network import Split

    path, _ = made
    config = EngineConfig(target=path, ctx=128, threads=1, threads_batch=1, state="off", device="cpu")
    tokens = np.random.default_rng(0).integers(3, 100, 33).astype(np.int32)
    with Engine(config) as engine:
        wanted = score(engine, tokens).chosen
    model = Split(path)
    states = model.write([tokens.tolist()], 33, torch.zeros(1), 0).states[0]
    logits = (states @ model.head.mT).float().log_softmax(-1)
    found = logits[torch.arange(32), torch.from_numpy(tokens[1:]).long()].numpy()
    assert np.median(np.abs(found - wanted)) < 0.05
    assert np.corrcoef(found, wanted)[0, 1] > 0.99


def test_the_file_has_the_trained_layer(made):
    path, weights = made
    reader = GGUFReader(path)
    tensors = {each.name: quants.dequantize(each.data, each.tensor_type) for each in reader.tensors}
    assert reader.fields["glm4moe.nextn_predict_layers"].contents() == 1
    assert reader.fields["glm4moe.block_count"].contents() == 3
    found = {"nextn.eh_proj": tensors["blk.2.nextn.eh_proj.weight"]}
    for name, axis in (("ffn_gate", 0), ("ffn_down", 1)):
        routed, shared = (tensors[f"blk.2.{name}_{kind}.weight"] for kind in ("exps", "shexp"))
        found[name] = np.concatenate([*routed, shared], axis)
    for name, values in found.items():
        wanted = weights[name].numpy()
        assert np.abs(values - wanted).max() < 0.02 * np.abs(wanted).max()
    assert np.abs(tensors["blk.2.attn_q.weight"] - tensors["blk.1.attn_q.weight"]).max() > 1e-4, "it learned"


def test_it_drafts(made):
    path, _ = made
    texts = []
    for drafts in ({"draft_max": 0}, {"draft_type": "draft-mtp", "draft_length": 2}):
        config = EngineConfig(target=path, ctx=128, threads=1, state="off", device="cpu", **drafts)
        with Engine(config) as engine:
            generation = engine.generate("the cat", 12, sampling=SamplingConfig(temp=0))
            texts.append("".join(generation))
    assert texts[0] == texts[1]
    assert generation.stats.drafted_tokens > 0
