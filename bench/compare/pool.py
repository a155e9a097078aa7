"""Bind ggml's persistent thread pool, as llama.cpp's own programs attach it to their contexts.

The unpatched library has no OpenMP. Where no pool is attached, it makes and ends one for every graph on the
CPU. With `--n-cpu-moe` each layer of experts is such a graph.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as api

MOST = 512  # GGML_MAX_N_THREADS


class _Params(ctypes.Structure):
    """ggml's ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * MOST),
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
        default = _function("ggml_threadpool_params_default", _Params, ctypes.c_int)
        params = default(n_threads)
        # A field in another place would stay unnoticed, and the pool would poll or sleep wrongly.
        if params.n_threads != n_threads or not 0 < params.poll <= 100 or params.paused:
            raise RuntimeError("ggml_threadpool_params is another structure in this library")
        new = _function("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(_Params))
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
