"""ggml's persistent thread pool, as llama.cpp's own programs attach it to their contexts.

A library without OpenMP, such as the one that is compared with, makes and ends a pool for every graph on the
CPU where none is attached. With `--n-cpu-moe` each layer of experts is such a graph.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as api

MOST = 512  # GGML_MAX_N_THREADS


class _Params(ctypes.Structure):
    """ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * MOST),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the loaded library that llama-cpp-python does not bind."""
    found = getattr(api._lib, name)
    found.restype, found.argtypes = result, arguments
    return found


class ThreadPool:
    """Threads that wait for graphs with llama.cpp's default polling.

    The contexts of target and draft share one pool: they compute in turns, and the threads of a second pool
    would still poll while those of the first compute.
    """

    def __init__(self, n_threads: int) -> None:
        """Raises RuntimeError where the library's structure is another, or there is no pool."""
        default = _function("ggml_threadpool_params_default", _Params, ctypes.c_int)
        params = default(n_threads)
        # A field in another place would pass unnoticed, and the pool would poll or sleep otherwise.
        if params.n_threads != n_threads or not 0 < params.poll <= 100 or params.paused:
            raise RuntimeError("ggml_threadpool_params is another structure in this library")
        new = _function("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(_Params))
        self.n_threads = n_threads
        self._pointer = new(ctypes.byref(params))
        if not self._pointer:
            raise RuntimeError(f"ggml makes no pool of {n_threads} threads")

    def attach(self, context: Any) -> None:
        """Lets a context compute with this pool and with as many threads as it has."""
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        api.llama_set_n_threads(context, self.n_threads, self.n_threads)
        _function("llama_attach_threadpool", None, *arguments)(context, self._pointer, self._pointer)

    def pause(self) -> None:
        """Has the threads sleep until the next graph, whatever polling says: others compute meanwhile."""
        _function("ggml_threadpool_pause", None, ctypes.c_void_p)(self._pointer)

    def close(self) -> None:
        """Ends the threads; all contexts have been detached from them."""
        _function("ggml_threadpool_free", None, ctypes.c_void_p)(self._pointer)


def detach(context: Any) -> None:
    """Takes the pool from a context."""
    _function("llama_detach_threadpool", None, ctypes.c_void_p)(context)
