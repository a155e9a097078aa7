"""Embeddings beside generations are those of the unpatched library, for each pooling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from spac.config import EngineConfig
from spac.errors import InputError
from spac.llama_cpp_python.embedder import pooling_of
from spac.llama_cpp_python.llama import Llama
from spac.model.params import POOLINGS
from tests.conftest import TinyModel

UBATCH = 32
TEXTS = [[5, 9, 2, 40], [7], [at % 60 for at in range(3, 3 + UBATCH)]]
LONG = [at * 7 % 61 for at in range(70)]
"""Tokens of three graphs. Only the last token's vector can be made from them."""

REFERENCE = """
import ctypes, json, os, sys
import llama_cpp.llama_cpp as api

api.llama_log_set(quiet := api.llama_log_callback(lambda *_: None), ctypes.c_void_p(0))
model = api.llama_model_load_from_file(os.fsencode(sys.argv[1]), api.llama_model_default_params())

def embeddings(pooling, texts):
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 256, 256 if pooling == 3 else 32, 32
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.embeddings, params.pooling_type = True, pooling
    context = api.llama_init_from_model(model, params)
    for tokens in texts:
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, at, 1
            batch.seq_id[at][0], batch.logits[at] = 0, 1
        api.llama_memory_clear(api.llama_get_memory(context), True)
        assert api.llama_decode(context, batch) == 0
        yield api.llama_get_embeddings_seq(context, 0)[: api.llama_model_n_embd(model)]

print(json.dumps({name: [*embeddings(*given)] for name, given in json.loads(sys.argv[2]).items()}))
"""


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe")


@pytest.fixture(scope="module")
def stock(reference_lib: Path, target: Path) -> dict[str, list[list[float]]]:
    """Return the unpatched library's embeddings, as it makes them, from a process without spac."""
    asked = {name: [number, texts_of(name)] for name, number in POOLINGS.items()}
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE, str(target), json.dumps(asked)],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(reference_lib)},
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: dict[str, list[list[float]]] = json.loads(done.stdout)
    return made


def texts_of(pooling: str) -> list[list[int]]:
    return [*TEXTS, LONG] if pooling == "last" else TEXTS


def config(target: Path, device: str) -> EngineConfig:
    return EngineConfig(
        target=target, device=device, slots=None if device == "cpu" else 6, ctx=256, ubatch=UBATCH, threads=1,
        flash_attn="off",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pooling", "device"),
    [("mean", "simulated"), ("cls", "simulated"), ("last", "simulated"), ("last", "cpu")],
)
def test_embeddings_are_those_of_the_unpatched_library(stock, target, pooling, device):
    with closing(Llama.from_config(config(target, device), pooling=pooling, verbose=False)) as llm:
        assert llm.embedder is not None
        assert llm.embedder.limit == (256 if pooling == "last" else UBATCH)
        before = llm([5, 9, 2], max_tokens=6, temperature=0)["choices"][0]["text"]
        made = [llm.embedder.embed(tokens) for tokens in texts_of(pooling)]
        assert llm([5, 9, 2], max_tokens=6, temperature=0)["choices"][0]["text"] == before
    for vector, expected in zip(made, np.array(stock[pooling], np.float32), strict=True):
        length = np.sqrt(np.sum(expected * expected, dtype=np.float64))
        np.testing.assert_array_equal(vector, expected * np.float32(1 / length))
        assert np.linalg.norm(vector) == pytest.approx(1)


def test_their_memory_counts(target):
    """The context is there before slots take what is left."""
    from spac import _core

    def in_use(pooling):
        limited = EngineConfig(target=target, device="simulated", ctx=256, slots=6, threads=1)
        with closing(Llama.from_config(limited, pooling=pooling, verbose=False)):
            return next(each.memory.used for each in _core.devices() if each.name == "simulated")

    assert in_use("last") > in_use(None)


def test_the_pooling_that_a_file_names(target, tmp_path):
    with pytest.raises(InputError, match="names no pooling for embeddings: give --pooling last"):
        pooling_of(target)
    with pytest.raises(InputError, match=r"none\.gguf: "):
        pooling_of(tmp_path / "none.gguf")
    writer = gguf.GGUFWriter(tmp_path / "mean.gguf", "qwen3moe")
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert pooling_of(tmp_path / "mean.gguf") == "mean"
