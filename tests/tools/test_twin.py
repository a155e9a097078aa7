"""A twin has the requested contents, and the model does what its weights promise."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, quants

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.model.c_api import Model
from spac.model.gguf.check import check_model
from tests.conftest import AGREEMENT
from tools.models.parts import Tensor
from tools.twin.__main__ import main
from tools.twin.catalog import MODELS
from tools.twin.chain import Chain
from tools.twin.drift import Drift, Locality, simulate, solve
from tools.twin.measure import Measured, in_chain, measure, run
from tools.twin.vocabulary import LEAST, make_vocabulary
from tools.twin.writer import Mix, Twin, quantize, random_numbers, write_twin

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
BILLIONS = {
    "qwen3-30b-a3b": 30.53,
    "deepseek-v2-lite": 15.71,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "qwen3.6-35b-a3b": 34.66,
    "qwen3.8-flash-next": 125.7,  # without its table of n-grams
    "deepseek-v4-flash": 284.3,
    "qwen3-4b": 4.02 + 0.39,  # the published model's head is its embedding
    "qwen3-0.6b": 0.596 + 0.156,
}


# Blocks


@pytest.mark.parametrize(("kind", "bound"), [(Type.Q4_K, 0.09), (Type.Q6_K, 0.02), (Type.Q8_0, 0.006)])
def test_computed_weights_survive_quantization(kind: Type, bound: float) -> None:
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((64, 512), dtype=np.float32) * rng.uniform(0.01, 10, (64, 1)).astype(
        np.float32
    )
    numbers[3] = 0
    numbers[4, 256:] = np.abs(numbers[4, 256:])
    back = quants.dequantize(quantize(numbers, kind), kind)
    assert np.sqrt(np.mean(np.square(back - numbers))) < bound * np.sqrt(np.mean(np.square(numbers)))
    assert not back[3].any()
    # Each row is right by itself too, so no block has the scale of another.
    errors = np.sqrt(np.square(back - numbers).sum(1) / np.maximum(np.square(numbers).sum(1), 1e-9))
    assert errors.max() < 1.6 * bound


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q5_0", "Q5_1", "MXFP4"])
def test_random_weights_have_the_spread_asked_for(name: str) -> None:
    kind, std = Type[name], 0.02
    numbers = quants.dequantize(random_numbers(np.random.default_rng(1), 1 << 18, kind, std), kind)
    assert numbers.size == 1 << 18
    ratio = float(numbers.std()) / std
    assert 0.7 < ratio < 1.42 if name == "MXFP4" else abs(ratio - 1) < 0.05  # MXFP4's scales are powers of 2
    assert abs(float(numbers.mean())) < 0.06 * std
    rows = numbers.reshape(2, -1)
    assert abs(float(np.corrcoef(rows)[0, 1])) < 0.01


def test_types_follow_the_rules_of_llama_cpp() -> None:
    def kinds(mix: Mix, *names: str, row: int = 2048) -> list[str]:
        return [mix.type_of(Tensor(name, (8, row))).name for name in names]

    qwen = Mix("q4_k_m", 48)
    names = [f"blk.{layer}.ffn_down_exps.weight" for layer in (0, 5, 6, 7, 8, 41, 42)]
    assert kinds(qwen, *names) == ["Q6_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K", "Q6_K"]
    assert kinds(qwen, "output.weight", "token_embd.weight", "blk.9.attn_v.weight") == [
        "Q6_K",
        "Q4_K",
        "Q4_K",
    ]
    assert kinds(qwen, "blk.0.ffn_down_exps.weight", "blk.9.attn_q.weight", row=1408) == ["Q8_0", "Q5_0"]
    assert kinds(Mix("mxfp4", 24), "blk.0.ffn_up_exps.weight", "blk.0.attn_q.weight") == ["MXFP4", "Q8_0"]
    assert qwen.type_of(Tensor("blk.0.ffn_gate_inp.weight", (128, 2048), "router")) == Type.F32


# Shapes


@pytest.mark.parametrize("name", BILLIONS)
def test_twins_have_the_named_models_parameters(name: str) -> None:
    model = MODELS[name]
    total = sum(int(np.prod(tensor.shape)) for tensor in model.tensors()) / 1e9
    assert total == pytest.approx(BILLIONS[name], rel=0.005)


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.shape.n_expert and n != "tiny"])
def test_every_family_writes_its_chain(name: str, tmp_path: Path) -> None:
    """The files are narrow and have few layers. Each passes the check and runs, and writes its chain."""
    model = MODELS[name].narrow(128, LEAST)
    model = replace(model, shape=replace(model.shape, n_layer=max(3, sum(model.period))))
    path = write_twin(tmp_path / "twin.gguf", Twin(name, model, model.mix, Drift(0.7, 0.95)))
    info = check_model(path)
    assert (info.n_expert, info.n_expert_used) == (MODELS[name].shape.n_expert, MODELS[name].shape.n_used)
    tokens, _, _ = run(path, 24, start=100)
    assert in_chain(tokens, 100, make_vocabulary(LEAST, 0).n_chain) == 1


@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b", "deepseek-v4-flash"])
def test_a_prediction_layer_knows_the_chosen_share(name: str, tmp_path: Path) -> None:
    model = MODELS[name].narrow(128, LEAST)
    model = replace(model, shape=replace(model.shape, n_layer=sum(model.period))).with_prediction()
    path = write_twin(tmp_path / "twin.gguf", Twin(name, model, model.mix, Drift(0.7, 0.95), prediction=0.6))
    config = EngineConfig(
        path, device="cpu", threads=1, ctx=512, draft_type="draft-mtp", draft_length=1, parallel=1,
        sampling=SamplingConfig(temp=0.0, ignore_eos=True),
    )  # fmt: skip
    with Engine(config) as engine:
        generation = engine.generate([100], 200)
        list(generation)
    assert in_chain(generation.tokens, 100, make_vocabulary(LEAST, 0).n_chain) == 1
    assert generation.stats.acceptance == pytest.approx(0.6, abs=0.12)


def test_models_without_a_prediction_layer_are_refused() -> None:
    for name in ("qwen3.8-flash-next", "gpt-oss-120b"):
        with pytest.raises(ValueError, match="--mtp: there are no twins of"):
            MODELS[name].with_prediction()


# The tokenizer


@pytest.mark.parametrize("n_vocab", [LEAST, 2048, 32000])
def test_every_word_is_made_of_earlier_tokens(n_vocab: int) -> None:
    vocabulary = make_vocabulary(n_vocab, 3)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == n_vocab
    known = set(vocabulary.tokens[vocabulary.n_chain : vocabulary.n_chain + 256])
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        assert {left, right} <= known, merge
        known.add(left + right)
    assert known == set(vocabulary.tokens[: vocabulary.first_special])


def test_text_is_read_back_as_the_tokens_it_was_written_from(twin: tuple[Path, Path]) -> None:
    model = Model(twin[0], (), {"vocab_only": True})
    tokens = list(range(5, 400, 3))
    text = b"".join(model.piece(token) for token in tokens).decode()
    assert model.tokenize(text).tolist() == tokens
    prose = "Plain text, 3 bytes: é"
    assert b"".join(model.piece(int(t)) for t in model.tokenize(prose)).decode() == prose
    model.close()


# Drift


@pytest.mark.parametrize(("kept", "near", "skew"), [(0.45, 0.80, 0.0), (0.3, 0.72, 0.0), (0.45, 0.82, 0.3)])
def test_a_drift_is_found_for_a_locality(kept: float, near: float, skew: float) -> None:
    found = Locality.of(simulate(solve(kept, near, 128, 8, skew), 128, 8, n_token=300, n_row=60))
    assert (found.kept, found.near) == pytest.approx((kept, near), abs=0.025)


def test_impossible_localities_are_refused() -> None:
    with pytest.raises(ValueError, match=r"45% kept, 99% within 8 tokens cannot be had, \d+% to \d+% can"):
        solve(0.45, 0.99, 128, 8)
    with pytest.raises(ValueError, match=r"2% kept cannot be had"):
        solve(0.02, 0.8, 128, 8)


def test_locality_of_a_known_routing() -> None:
    active = np.zeros((40, 2, 6), np.bool_)
    for token, row in enumerate(active):
        row[0, [0, 1]] = True  # the same two experts each time
        row[1, [token % 2, 4]] = True  # one expert stays, two others take turns
    found = Locality.of(active)
    assert found.kept == pytest.approx((1 + 0.5) / 2)
    assert found.near == 1
    assert found.growth == {3: pytest.approx(1.25), 5: pytest.approx(1.25), 8: pytest.approx(1.25)}


def test_rows_of_the_chain_drift_and_close() -> None:
    vocabulary = make_vocabulary(LEAST, 0)
    chain = Chain(vocabulary, 512, Drift(0.7, 0.9), seed=1)
    rows = np.concatenate(list(chain.embedding(100)))
    assert rows.shape == (LEAST, 512)
    words = rows[: vocabulary.n_chain]
    around = np.concatenate([words, words[:4]])
    for lag in (1, 2, 4):
        places = np.mean(around[: len(words)] * around[lag : len(words) + lag], axis=1)
        assert places.mean() == pytest.approx(0.7 * 0.9**lag, abs=0.03)
        assert abs(places[-lag:].mean() - 0.7 * 0.9**lag) < 0.25  # this holds across the end too
    # The head's rows are the embedding's, moved by one token.
    head = np.concatenate(list(chain.head(100)))[: vocabulary.n_chain]
    logits = words @ head.T
    assert np.array_equal(logits.argmax(1), (np.arange(len(words)) + 1) % len(words))


# The whole file


def test_the_file_is_what_its_header_says(twin: tuple[Path, Path]) -> None:
    for path in twin:
        info = check_model(path)
        reader = GGUFReader(path)
        assert info.n_vocab == 2048
        assert {t.name for t in reader.tensors} >= {
            "token_embd.weight",
            "output.weight",
            "output_norm.weight",
        }
        for tensor in reader.tensors:
            numbers = quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.isfinite(numbers).all(), tensor.name
    assert (check_model(twin[0]).n_expert, check_model(twin[0]).n_expert_used) == (128, 8)


def test_equal_twins_are_equal_bytes(twin: tuple[Path, Path], tmp_path: Path) -> None:
    drift = solve(0.45, 0.80, 128, 8)
    tiny = Twin("tiny", MODELS["tiny"], "q4_k_m", drift)
    for n_threads in (1, 5):
        path = write_twin(tmp_path / "a.gguf", tiny, n_threads)
        assert path.read_bytes() == twin[0].read_bytes()
    other = write_twin(tmp_path / "b.gguf", replace(tiny, seed=1))
    assert other.read_bytes() != twin[0].read_bytes()


def test_a_sparse_twin_is_the_whole_ones_header(twin: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    assert main(["tiny", str(path), "--sparse"]) == 0
    whole, sparse = (replace(check_model(each), path=path) for each in (twin[0], path))
    assert sparse == whole
    assert path.stat().st_blocks * 512 < twin[0].stat().st_blocks * 512 / 2


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    model = MODELS["tiny"]

    def peak(n_layer: int) -> tuple[int, int]:
        shape = replace(model.shape, n_layer=n_layer)
        tracemalloc.start()
        path = write_twin(
            tmp_path / "m.gguf", Twin("m", replace(model, shape=shape), "q8_0", Drift(0.7, 0.9))
        )
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, path.stat().st_size

    (small, small_file), (large, large_file) = peak(2), peak(20)
    assert large_file - small_file > 25e6
    assert large - small < 5e6


@pytest.fixture(scope="module")
def measured(twin: tuple[Path, Path]) -> Measured:
    return measure(twin[0], 500, draft=twin[1], start=100)


def test_greedy_text_is_the_chain(measured: Measured) -> None:
    assert measured.in_chain == 1
    assert measured.n_token == 500


def test_locality_is_the_published_one(measured: Measured) -> None:
    assert measured.locality.kept == pytest.approx(0.45, abs=0.05)
    assert measured.locality.near == pytest.approx(0.80, abs=0.05)
    assert all(abs(layer.kept - 0.45) < 0.1 for layer in measured.by_layer)


def test_the_draft_is_right_as_often_as_chosen(measured: Measured, twin: tuple[Path, Path]) -> None:
    """The share is within the band of a binomial count of about 150 steps. Accepted of 8 follows from it."""
    assert measured.agreement == pytest.approx(AGREEMENT, abs=0.12)
    expected = sum(AGREEMENT**n for n in range(1, 9)) / 8
    assert measured.acceptance == pytest.approx(expected, abs=0.1)


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "x.gguf")
    for arguments, message in (
        (["tiny", out, "--locality", "0.45,0.99"], "cannot be had"),
        (["tiny", out, "--skew", "1.5"], "leave a token nothing"),
        (["tiny", out, "--width", "50"], "a width of 50"),
        (["tiny-draft", out, "--draft", out + "d"], "has no draft"),
        (["measure", str(ROOT / "python/spac/demo/target.gguf")], "not a twin"),
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1
