"""The parts of the maker of split models that need no model of language."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, quants

from tools.models import Shape, write_model
from tools.split_dense import fetch
from tools.split_dense.__main__ import main
from tools.split_dense.groups import cluster, divide
from tools.split_dense.writer import Dense

SHAPE = Shape(n_ff=256, types={"*": "Q4_1"}, n_layer=2)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[GGUFReader, GGUFReader]:
    """Return a tiny dense model and its split form, made from a given text."""
    folder = tmp_path_factory.mktemp("split")
    dense = write_model(folder / "dense.gguf", "llama", SHAPE)
    (folder / "text").write_text("the cat sat on the mat. " * 100)
    words = ["--experts", "6", "--shared", "2", "--used", "3", "--threads", "1"]
    main([str(folder / "split.gguf"), "--model", str(dense), "--text", str(folder / "text"), *words])
    return GGUFReader(dense), GGUFReader(folder / "split.gguf")


def numbers(reader: GGUFReader, name: str) -> Any:
    tensor = next(each for each in reader.tensors if each.name == name)
    return quants.dequantize(tensor.data, tensor.tensor_type)


def test_every_neuron_is_in_one_place(split):
    dense, made = split
    for part in ("gate", "up"):
        experts, shared = (numbers(made, f"blk.1.ffn_{part}_{kind}.weight") for kind in ("exps", "shexp"))
        rows = np.concatenate([shared, *experts])
        whole = numbers(dense, f"blk.1.ffn_{part}.weight")
        assert np.array_equal(np.unique(rows, axis=0), np.unique(whole, axis=0)), "the same quantized values"


def test_all_experts_give_the_dense_sum(split):
    dense, made = split

    def block(reader: GGUFReader, kind: str, x: Any) -> Any:
        gate, up, down = (
            numbers(reader, f"blk.0.ffn_{part}{kind}.weight") for part in ("gate", "up", "down")
        )
        z = gate @ x
        return (
            (down @ (z / (1 + np.exp(-z)) * (up @ x))[..., None])[..., 0]
            if kind == "_exps"
            else down @ (z / (1 + np.exp(-z)) * (up @ x))
        )

    x = np.random.default_rng(0).standard_normal(numbers(dense, "blk.0.ffn_gate.weight").shape[1])
    whole = block(dense, "", x)
    parts = block(made, "_exps", x).sum(0) + block(made, "_shexp", x)
    assert np.abs(parts - whole).max() < 0.02 * np.abs(whole).max()
    logits = numbers(made, "blk.0.ffn_gate_inp.weight") @ x
    weights = made.fields["glm4moe.expert_weights_scale"].contents() / (1 + np.exp(-logits))
    assert np.abs(weights - 1).max() < 0.01
    assert len(set(weights)) == 6


def test_neurons_that_are_strong_together_share_an_expert():
    rng = np.random.default_rng(1)
    kinds = rng.permutation(np.repeat(np.arange(4), 8))
    features = (rng.integers(0, 4, 200) == kinds[:, None]) + 0.05 * rng.random((32, 200))
    labels = cluster(features, 4)
    assert all(len(set(labels[kinds == kind])) == 1 for kind in range(4))
    assert sorted(np.bincount(labels)) == [8, 8, 8, 8]


def test_the_router_knows_which_expert_is_strong():
    rng = np.random.default_rng(2)
    kinds, tokens = np.repeat(np.arange(4), 8), rng.integers(0, 4, 400)
    inputs = (np.eye(4)[tokens] + 0.1 * rng.standard_normal((400, 4))).astype(np.float32)
    neurons = ((tokens[:, None] == kinds) + 0.1 * rng.random((400, 32))).astype(np.float32)
    neurons = np.concatenate([neurons, np.full((400, 8), 2, np.float32)], axis=1)
    groups = divide(inputs, neurons, np.eye(40, dtype=np.float32), 4, 1)
    assert groups.shared.tolist() == list(range(32, 40)), "these are always strong"
    chosen = (inputs @ groups.router.T).argmax(1)
    strongest = np.stack([neurons[:, each].sum(1) for each in groups.experts], 1).argmax(1)
    assert (chosen == strongest).mean() > 0.95


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--used", "9"], "--used: 9 of 6 experts cannot be used"),
        (["--shared", "0"], "--shared: at least 1"),
        (["--shared", "1"], "256 neurons do not divide into 6 experts and 1 shared ones"),
        (["--model", "missing.gguf"], "missing.gguf"),
        (["--threads", "0"], "--threads: at least 1"),
    ],
)
def test_bad_input_gets_one_line(words, message, tmp_path: Path):
    dense = write_model(tmp_path / "dense.gguf", "llama", SHAPE)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                str(tmp_path / "x.gguf"),
                "--model",
                str(dense),
                "--experts",
                "6",
                "--shared",
                "2",
                "--used",
                "3",
                *words,
            ]
        )
    assert str(ended.value).startswith("error: ")
    assert message in str(ended.value)
    assert "\n" not in str(ended.value)


def test_a_model_of_another_architecture(tmp_path: Path):
    path = write_model(tmp_path / "x.gguf", "qwen3")
    with pytest.raises(ValueError, match="no dense model of the architecture 'llama'"):
        Dense(path)


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    failed = SimpleNamespace(returncode=1, stderr="WARNING: retrying\nERROR: No matching distribution\n")
    monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        ValueError, match="could not be downloaded: ERROR: No matching distribution; fetch it"
    ):
        fetch.fetch()
