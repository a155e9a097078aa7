"""Compute what the machine can do at best: measured bandwidths, and the token rate that they bound.

    python -m bench.compare.roofline LIBRARY DEVICE THREADS MEGABYTES RESULT.json

A decode step reads the dense weights and the resident experts on the device, and the other experts in host
memory, both at once. It cannot be faster than the slower of the two. Drafting reads the draft's weights once
per drafted token. The bound has no compute, launches, waits or copies: they are the share that can still be
gained.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spac.model.gguf.header import read_header
from spac.model.gguf.info import EXPERTS

_C = """
typedef struct dev dev; typedef struct backend backend; typedef struct buffer buffer;
typedef struct buft buft; typedef struct context context; typedef struct tensor tensor;
struct params { size_t mem_size; void * mem_buffer; bool no_alloc; };
dev * ggml_backend_dev_by_name(const char * name);
backend * ggml_backend_dev_init(dev *, const char * params);
buft * ggml_backend_dev_host_buffer_type(dev *);
buffer * ggml_backend_buft_alloc_buffer(buft *, size_t size);
void * ggml_backend_buffer_get_base(buffer *);
context * ggml_init(struct params params);
tensor * ggml_new_tensor_1d(context *, int type, int64_t);
buffer * ggml_backend_alloc_ctx_tensors(context *, backend *);
void ggml_backend_tensor_set(tensor *, const void *, size_t offset, size_t size);
void ggml_backend_tensor_copy(tensor * from, tensor * to);
void ggml_backend_synchronize(backend *);
"""


@dataclass(frozen=True)
class Bandwidths:
    """Bandwidths in bytes per second. `link` is None where the device computes in host memory."""

    dram: float
    link: float | None
    device: float


@dataclass(frozen=True)
class Weights:
    """The bytes of a model that a decoded token reads."""

    dense: int
    expert: float  # one expert, on average over the layers

    @classmethod
    def of(cls, path: Path) -> Weights:
        """Return the weights of a file, from its header. The token embedding is a look-up, so it counts only
        if it is the head too."""
        tensors = read_header(path).tensors
        names = {tensor.name for tensor in tensors}
        unread = {"token_embd.weight"} if "output.weight" in names else set()
        experts = [tensor for tensor in tensors if EXPERTS.search(tensor.name)]
        n_expert = max((tensor.shape[-1] for tensor in experts), default=1)
        n_layer = len({tensor.name.split(".")[1] for tensor in experts})
        expert_bytes = sum(tensor.n_bytes for tensor in experts)
        dense = sum(tensor.n_bytes for tensor in tensors if tensor.name not in unread) - expert_bytes
        return cls(dense, expert_bytes / (n_expert * n_layer) if n_layer else 0.0)


def ideal_step_s(
    bandwidths: Bandwidths,
    target: Weights,
    resident: float,
    missing: float,
    draft: Weights | None,
    drafted: float,
) -> float:
    """Return the least seconds of a step: `resident` and `missing` distinct experts, `drafted` tokens."""
    device = (target.dense + resident * target.expert) / bandwidths.device
    host = missing * target.expert / bandwidths.dram
    return max(device, host) + (drafted * draft.dense / bandwidths.device if draft is not None else 0.0)


def _best_rate(n_bytes: int, work: Callable[[], object], repeats: int = 5) -> float:
    """Return bytes per second of the fastest of some repeats."""
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return n_bytes / min(times[1:])


def dram(threads: int, n_bytes: int) -> float:
    """Return the bytes per second that so many threads read."""
    parts = [np.ones(n_bytes // threads // 8, np.int64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return _best_rate(sum(p.nbytes for p in parts), lambda: list(pool.map(lambda p: int(p.max()), parts)))


def measure(library: Path, device_name: str, threads: int, n_bytes: int) -> Bandwidths:
    """Measure the bandwidths of this machine. Raise ValueError if the device cannot be found."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_C)
    c: Any = ffi.dlopen(str(library))
    device = c.ggml_backend_dev_by_name(device_name.encode())
    if device == ffi.NULL:
        raise ValueError(f"no device {device_name} in {library}")
    backend = c.ggml_backend_dev_init(device, ffi.NULL)
    context = c.ggml_init({"mem_size": 1 << 16, "mem_buffer": ffi.NULL, "no_alloc": True})
    one, two = (c.ggml_new_tensor_1d(context, 24, n_bytes) for _ in range(2))  # 24: I8
    if c.ggml_backend_alloc_ctx_tensors(context, backend) == ffi.NULL:
        raise ValueError(f"{device_name} has no {2 * n_bytes >> 20} MB to measure with")

    def copy() -> None:
        c.ggml_backend_tensor_copy(one, two)
        c.ggml_backend_synchronize(backend)

    link = None
    pinned = c.ggml_backend_dev_host_buffer_type(device)
    if pinned != ffi.NULL and (buffer := c.ggml_backend_buft_alloc_buffer(pinned, n_bytes)) != ffi.NULL:
        source = c.ggml_backend_buffer_get_base(buffer)
        ffi.memmove(source, b"\\1" * 4096, 4096)
        link = _best_rate(n_bytes, lambda: c.ggml_backend_tensor_set(one, source, 0, n_bytes))
    return Bandwidths(dram(threads, n_bytes), link, 2 * _best_rate(n_bytes, copy))


def main() -> int:
    library, device, threads, megabytes, path = sys.argv[1:6]
    found = measure(Path(library), device, int(threads), int(megabytes) << 20)
    Path(path).write_text(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
