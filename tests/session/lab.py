"""Engines, models and contexts of tiny models, closed in the right order when a test ends."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine.arrays import Float32Array, Int32Array
from spac.model import c_api

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

Tokens = Int32Array
GREEDY = SamplingConfig(temp=0.0, ignore_eos=True)
ONE_PLACE: dict[str, Any] = {
    "device": "simulated", "threads": 1, "ctx": 256, "slots": 0, "scheduler": "none", "state": "off",
    "flash_attn": "off", "sampling": GREEDY,
}  # fmt: skip


@api.llama_log_callback
def _silent(_level: int, _text: bytes, _data: object) -> None:
    """Drop the library's log lines. They would disturb a test's output."""


class Lab:
    """The owner of engines, models and contexts. It frees them last to first."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._models: dict[Path, int] = {}
        self.handles: dict[Path, _core.Experts | None] = {}
        # Other tests in this process need the library's log afterwards. It tells why something failed.
        self._closing.callback(c_api.listen)
        api.llama_log_set(_silent, ctypes.c_void_p(0))
        api.llama_backend_init()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def engine(self, target: Path, **options: Any) -> Engine:
        """Return an engine that closes when the test ends. Its slots are empty until a plan comes."""
        return self._closing.enter_context(Engine(EngineConfig(target=target, **{**ONE_PLACE, **options})))

    def model(self, path: Path) -> int:
        """Return the llama_model of this file, loaded once. Its experts are on the CPU until it has slots."""
        if path not in self._models:
            params = api.llama_model_default_params()
            params.load_mtp = True
            with _core.LoadScope() as scope:
                model = api.llama_model_load_from_file(str(path).encode(), params)
                self.handles[path] = scope.experts
            assert model, f"{path} did not load"
            self._closing.callback(api.llama_model_free, model)
            self._models[path] = model
        return self._models[path]

    def context(self, path: Path, **params: Any) -> int:
        """Return a new llama_context of this file's model, with small defaults."""
        model = self.model(path)
        values = {"n_ctx": 256, "n_batch": 64, "n_threads": 1, "n_threads_batch": 1, "no_perf": True} | params
        settings = api.llama_context_default_params()
        for name, value in values.items():
            setattr(settings, name, value)
        context = api.llama_init_from_model(model, settings)
        assert context, f"no context for {path}"
        self._closing.callback(api.llama_free, context)
        return context

    def experts(self, path: Path) -> _core.Experts | None:
        """Return the handle on the experts of a model that is loaded."""
        return self.handles[path]

    def logits_after(self, path: Path, tokens: Tokens, **params: Any) -> Float32Array:
        """Return the model's logits for the token after `tokens`, by llama.cpp's C interface alone.

        They are float32[n_vocab]. `params` are the context's.
        """
        context = self.context(path, **params)
        data = (ctypes.c_int32 * len(tokens))(*tokens.tolist())  # the batch points into it
        assert api.llama_decode(context, api.llama_batch_get_one(data, len(tokens))) == 0
        n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model(path)))
        return np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (n_vocab,)).copy()


def asked(program: str, given: Any, library: Path) -> Any:
    """Return what a Python program with this library prints. It reads `given`, and both are JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given), capture_output=True, text=True, timeout=100,
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(library), "PYTHONPATH": ""}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def prompt(n: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.int32)


def generate(engine: Engine, tokens: Tokens, n: int, **options: Any) -> list[int]:
    generation = engine.generate(tokens, n, **options)
    list(generation)
    return generation.tokens


def submit(experts: _core.Experts, n_resident: int) -> None:
    """Bring the first experts of each layer into slots."""
    experts.attach_slots(experts.n_layer * experts.n_expert)
    wanted = np.arange(experts.n_expert) < n_resident
    experts.submit(np.tile(wanted, (experts.n_layer, 1)).astype(np.int32), np.ones(experts.n_layer, np.int32))
    assert experts.settle(10)
