"""Run llama.cpp as published: the unpatched library through llama-cpp-python's ctypes functions.

Speculation is llama.cpp's simple kind, greedy: a draft model proposes, and the target verifies the draft in
one batch. The loop around the library's calls is Python's. It costs some ten microseconds per step.

Contexts compute with ggml's persistent thread pool, as llama.cpp's own programs attach it. The unpatched
library has no OpenMP. Where no pool is attached, it makes and ends one for every graph on the CPU. With
`--n-cpu-moe` each layer of experts is such a graph.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np

from bench.compare.job import Job, Run
from bench.compare.likelihood import PIECE, surprises

BATCH = 2048
MOST_THREADS = 512  # GGML_MAX_N_THREADS


class _Override(ctypes.Structure):
    """llama.cpp's llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _user: object) -> None:
    if level == 4:
        print(text.decode(errors="replace"), end="", flush=True)


def start() -> None:
    """Initialize the library, once per process, before anything else."""
    api.llama_log_set(_log, ctypes.c_void_p(0))
    api.llama_backend_init()


def _experts_on_cpu(n_layer: int) -> Any:
    """Return the overrides of --n-cpu-moe: experts of the first layers go into the CPU's plain buffers."""
    buffer_type = api._lib.ggml_backend_cpu_buffer_type
    buffer_type.restype = ctypes.c_void_p
    rows = [
        _Override(rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode(), buffer_type())
        for layer in range(n_layer)
    ]
    return (_Override * (n_layer + 1))(*rows, _Override(None, None))


class _PoolParams(ctypes.Structure):
    """ggml's ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * MOST_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the loaded library that llama-cpp-python does not bind."""
    found = getattr(api._lib, name)
    found.restype, found.argtypes = result, arguments
    return found


class ThreadPool:
    """Threads that wait for graphs with llama.cpp's default polling.

    The contexts of target and draft share one pool, because they compute in turns. The threads of a second
    pool would still poll while those of the first compute.
    """

    def __init__(self, n_threads: int) -> None:
        """Raise RuntimeError where the library's structure differs, or where it makes no pool."""
        default = _function("ggml_threadpool_params_default", _PoolParams, ctypes.c_int)
        params = default(n_threads)
        # A field in another place would stay unnoticed, and the pool would poll or sleep wrongly.
        if params.n_threads != n_threads or not 0 < params.poll <= 100 or params.paused:
            raise RuntimeError("ggml_threadpool_params is another structure in this library")
        new = _function("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(_PoolParams))
        self.n_threads = n_threads
        self._pointer = new(ctypes.byref(params))
        if not self._pointer:
            raise RuntimeError(f"ggml makes no pool of {n_threads} threads")

    def attach(self, context: Any) -> None:
        """Let a context compute with this pool, and with all of its threads."""
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        api.llama_set_n_threads(context, self.n_threads, self.n_threads)
        _function("llama_attach_threadpool", None, *arguments)(context, self._pointer, self._pointer)

    def pause(self) -> None:
        """Let the threads sleep until the next graph, whatever polling says: others compute meanwhile."""
        _function("ggml_threadpool_pause", None, ctypes.c_void_p)(self._pointer)

    def close(self) -> None:
        """End the threads. All contexts have been detached from them."""
        _function("ggml_threadpool_free", None, ctypes.c_void_p)(self._pointer)


def detach(context: Any) -> None:
    """Detach a context from its pool."""
    _function("llama_detach_threadpool", None, ctypes.c_void_p)(context)


class Decoder:
    """A model and one context of it. All of it is on the device except what `n_cpu_moe` keeps on the CPU."""

    def __init__(self, path: str, job: Job, pool: ThreadPool, n_cpu_moe: int | None = None) -> None:
        """Load the model. `pool` computes what is on the CPU; it must outlive the decoder."""
        params = api.llama_model_default_params()
        on_device = job.device != "cpu"
        params.n_gpu_layers = -1 if on_device else 0
        if on_device:
            params.split_mode, params.main_gpu = 0, int(re.sub(r"\D", "", job.device) or 0)
        if n_cpu_moe:
            self._overrides = _experts_on_cpu(n_cpu_moe)
            params.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p).value
        # Repacked experts, as on a CPU alone, are rounded differently.
        if job.kind == "likelihoods" or not job.repack:
            params.use_extra_bufts = False
        self.model = api.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"{path} does not load in llama.cpp")
        # An override to the CPU's plain buffers takes the first CPU buffer type that fits. Beside a GPU that
        # is the pinned type. A mapping makes it plain again, so that no weights are repacked.
        params.no_host = job.no_host
        values = api.llama_context_default_params()
        values.n_ctx, values.n_batch, values.n_ubatch = job.ctx, BATCH, 512
        values.n_threads = values.n_threads_batch = job.threads
        values.swa_full = False  # as in llama.cpp's programs
        if job.kind == "likelihoods":  # else the device also computes large batches of what is on the CPU
            values.op_offload = False
        else:  # only the rows that are read get logits, as on spac's side: the other memory holds experts
            values.n_outputs_max = 1 if path == job.draft else job.draft_length + 1
        self.context = api.llama_init_from_model(self.model, values)
        if not self.context:
            raise RuntimeError(f"{path}: llama.cpp makes no context of {job.ctx} tokens")
        pool.attach(self.context)
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self._batch = api.llama_batch_init(BATCH, 0, 1)
        for i in range(BATCH):
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, 0
        shape = (BATCH,)
        self._token = np.ctypeslib.as_array(self._batch.token, shape)
        self._pos = np.ctypeslib.as_array(self._batch.pos, shape)
        self._logits = np.ctypeslib.as_array(self._batch.logits, shape)

    def decode(self, tokens: Sequence[int], position: int, *, logits: str = "none") -> None:
        """Evaluate tokens from `position` on, with logits of "none", the "last" of them or "all"."""
        for start in range(0, len(tokens), BATCH):
            piece = tokens[start : start + BATCH]
            n = len(piece)
            self._batch.n_tokens = n
            self._token[:n] = piece
            self._pos[:n] = np.arange(position + start, position + start + n)
            self._logits[:n] = logits == "all"
            if logits == "last" and start + n == len(tokens):
                self._logits[n - 1] = 1
            if status := api.llama_decode(self.context, self._batch):
                raise RuntimeError(f"llama_decode returned {status} at position {position + start}")

    def best(self, row: int) -> int:
        """Return the likeliest token of a row of the last batch (-1: its last row with logits)."""
        # llama_sampler_sample is slower: with a large vocabulary its list of candidates costs more than this.
        logits = api.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())

    def rows(self, n: int) -> np.ndarray:
        """Return float32 [n, n_vocab]: the logits of the last batch."""
        pointer = api.llama_get_logits(self.context)
        return np.ctypeslib.as_array(pointer, (n, self.n_vocab))

    @property
    def n_past(self) -> int:
        """The number of tokens that the memory holds."""
        return int(api.llama_memory_seq_pos_max(api.llama_get_memory(self.context), 0)) + 1

    def forget(self, position: int) -> None:
        """Remove what the memory holds from `position` on."""
        api.llama_memory_seq_rm(api.llama_get_memory(self.context), 0, position, -1)

    def close(self) -> None:
        """Free the model and its context, and detach from the pool."""
        detach(self.context)
        api.llama_batch_free(self._batch)
        api.llama_free(self.context)
        api.llama_model_free(self.model)


def generate(target: Decoder, draft: Decoder | None, prompt: list[int], n_predict: int, length: int) -> Run:
    """Generate greedy text after a prompt, with `length` drafted tokens a step where there is a draft."""
    begun = time.perf_counter()
    for each in filter(None, (target, draft)):
        each.forget(0)
        if len(prompt) > 1:
            each.decode(prompt[:-1], 0)
    _wait(target)
    prefilled = time.perf_counter()
    tokens, end, known = list(prompt), len(prompt) + n_predict, len(prompt) - 1
    steps = drafted = accepted = 0
    draft_s = verify_s = 0.0
    first = None
    while len(tokens) < end:
        started = time.perf_counter()
        proposal: list[int] = []
        room = min(length, end - len(tokens) - 1)
        if draft is not None and room > 0:
            draft.decode(tokens[known:], known, logits="last")
            proposal.append(draft.best(-1))
            while len(proposal) < room:
                draft.decode(proposal[-1:], len(tokens) + len(proposal) - 1, logits="last")
                proposal.append(draft.best(-1))
        position = len(tokens) - 1
        proposed = time.perf_counter()
        target.decode([tokens[-1], *proposal], position, logits="all")
        _wait(target)
        verified = time.perf_counter()
        kept = 0
        while True:
            token = target.best(kept)
            tokens.append(token)
            if kept == len(proposal) or proposal[kept] != token:
                break
            kept += 1
        target.forget(position + 1 + kept)
        if draft is not None:
            known = position + 1 + min(kept, max(0, len(proposal) - 1)) if proposal else known
            draft.forget(known)
        steps, drafted, accepted = steps + 1, drafted + len(proposal), accepted + kept
        draft_s, verify_s = draft_s + proposed - started, verify_s + verified - proposed
        first = first or time.perf_counter()
    return Run(
        prompt_tokens=len(prompt), prefill_s=prefilled - begun, first_token_s=(first or prefilled) - begun,
        decode_s=time.perf_counter() - prefilled, tokens=tokens[len(prompt) :], steps=steps, drafted=drafted,
        accepted=accepted, figures={"draft_s": draft_s, "verify_s": verify_s},
    )  # fmt: skip


def follow_ups(target: Decoder, draft: Decoder | None, job: Job, text: list[int]) -> list[float]:
    """Return the seconds to the first token of follow-ups behind a text, of which all but the last token is
    in the memory. The draft reads them too, since it goes on from there."""
    text, found = list(text), []
    for tokens in job.follow_ups(len(text)):
        text += tokens
        begun = time.perf_counter()
        if draft is not None:
            draft.decode(text[draft.n_past : -1], draft.n_past)
        target.decode(text[target.n_past :], target.n_past, logits="last")
        text.append(target.best(-1))
        found.append(time.perf_counter() - begun)
    return found


def _wait(decoder: Decoder) -> None:
    """Wait until the device has done its queued work."""
    api.llama_synchronize(decoder.context)


def likelihoods(decoder: Decoder, tokens: list[int]) -> list[float]:
    """Return the surprise of all tokens but the first, each after those before it."""
    decoder.forget(0)
    found: list[float] = []
    for start in range(0, len(tokens) - 1, PIECE):
        piece = tokens[start : min(start + PIECE, len(tokens) - 1)]
        decoder.decode(piece, start, logits="all")
        found += surprises(decoder.rows(len(piece)), tokens[start + 1 : start + 1 + len(piece)])
    return found
