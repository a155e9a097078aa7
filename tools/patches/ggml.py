"""Bind the part of ggml's C interface that one MoE operator needs, through cffi from the library file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cffi import FFI

from spac import _library
from spac.machine.arrays import Float32Array

N_TYPES = 43  # GGML_TYPE_COUNT of the pinned source
# Formats of activations: no kernel reads weights in them.
ACTIVATIONS = {"q8_1", "q8_K"}
PLAIN = {"f32", "f16", "bf16"}

_ffi = FFI()
_ffi.cdef("""
typedef struct ggml_context ggml_context;
typedef struct ggml_tensor ggml_tensor;
typedef struct ggml_cgraph ggml_cgraph;
typedef struct ggml_backend_reg ggml_backend_reg;
typedef struct ggml_backend_device ggml_backend_device;
typedef struct ggml_backend ggml_backend;
typedef struct ggml_backend_buffer ggml_backend_buffer;
typedef struct ggml_backend_buffer_type ggml_backend_buffer_type;
struct ggml_init_params { size_t mem_size; void * mem_buffer; bool no_alloc; };

ggml_context * ggml_init(struct ggml_init_params params);
void           ggml_free(ggml_context *);
size_t         ggml_tensor_overhead(void);
size_t         ggml_graph_overhead(void);
const char *   ggml_type_name(int type);
bool           ggml_is_quantized(int type);
int64_t        ggml_blck_size(int type);
size_t         ggml_row_size(int type, int64_t ne);
size_t         ggml_quantize_chunk(int type, const float * src, void * dst, int64_t start, int64_t n_rows,
                                   int64_t n_per_row, const float * importance);
void *         ggml_get_data(const ggml_tensor *);
ggml_tensor *  ggml_new_tensor_2d(ggml_context *, int type, int64_t, int64_t);
ggml_tensor *  ggml_new_tensor_3d(ggml_context *, int type, int64_t, int64_t, int64_t);
ggml_tensor *  ggml_view_2d(ggml_context *, ggml_tensor *, int64_t, int64_t, size_t nb1, size_t offset);
ggml_tensor *  ggml_mul(ggml_context *, ggml_tensor * a, ggml_tensor * b);
ggml_tensor *  ggml_mul_inplace(ggml_context *, ggml_tensor * a, ggml_tensor * b);
ggml_tensor *  ggml_mul_mat(ggml_context *, ggml_tensor * a, ggml_tensor * b);
ggml_tensor *  ggml_mul_mat_id(ggml_context *, ggml_tensor * as, ggml_tensor * b, ggml_tensor * ids);
ggml_tensor *  ggml_flash_attn_ext(ggml_context *, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                   ggml_tensor * mask, float scale, float max_bias, float logit_softcap);
ggml_tensor *  ggml_add_id(ggml_context *, ggml_tensor * a, ggml_tensor * b, ggml_tensor * ids);
ggml_tensor *  ggml_swiglu_split(ggml_context *, ggml_tensor * a, ggml_tensor * b);
ggml_tensor *  ggml_swiglu_oai(ggml_context *, ggml_tensor * a, ggml_tensor * b, float alpha, float limit);
ggml_tensor *  ggml_swiglu(ggml_context *, ggml_tensor * a);
ggml_tensor *  ggml_geglu_split(ggml_context *, ggml_tensor * a, ggml_tensor * b);
ggml_tensor *  ggml_add(ggml_context *, ggml_tensor * a, ggml_tensor * b);
ggml_tensor *  ggml_view_3d(ggml_context *, ggml_tensor *, int64_t, int64_t, int64_t, size_t nb1, size_t nb2,
                            size_t offset);
void           ggml_set_output(ggml_tensor *);
ggml_cgraph *  ggml_new_graph(ggml_context *);
void           ggml_build_forward_expand(ggml_cgraph *, ggml_tensor *);

ggml_backend_device * ggml_backend_dev_by_name(const char * name);
const char *          ggml_backend_dev_description(ggml_backend_device *);
ggml_backend_reg *    ggml_backend_dev_backend_reg(ggml_backend_device *);
ggml_backend *        ggml_backend_dev_init(ggml_backend_device *, const char * params);
bool                  ggml_backend_dev_supports_op(ggml_backend_device *, const ggml_tensor *);
void *                ggml_backend_reg_get_proc_address(ggml_backend_reg *, const char * name);
ggml_backend_reg *    ggml_backend_cuda_reg(void);
size_t                ggml_backend_reg_dev_count(ggml_backend_reg *);
ggml_backend_device * ggml_backend_reg_dev_get(ggml_backend_reg *, size_t);
void                  ggml_backend_free(ggml_backend *);
int                   ggml_backend_graph_compute(ggml_backend *, ggml_cgraph *);
ggml_backend_buffer * ggml_backend_alloc_ctx_tensors(ggml_context *, ggml_backend *);
ggml_backend_buffer * ggml_backend_alloc_ctx_tensors_from_buft(ggml_context *, ggml_backend_buffer_type *);
const char *          ggml_backend_buft_name(ggml_backend_buffer_type *);
void                  ggml_backend_buffer_set_usage(ggml_backend_buffer *, int usage);
void                  ggml_backend_buffer_free(ggml_backend_buffer *);
void                  ggml_backend_tensor_set(ggml_tensor *, const void *, size_t offset, size_t size);
void                  ggml_backend_tensor_get(const ggml_tensor *, void *, size_t offset, size_t size);
size_t                ggml_nbytes(const ggml_tensor *);
""")

Pointer = Any  # a cffi pointer


class Ggml:
    """One library file. Everything made here must be freed before the next library is loaded. Two libraries
    at a time need a process each."""

    I32 = 26
    F32 = 0

    def __init__(self, library: Path) -> None:
        _library._open(library)  # finds cuBLAS where it is a Python package
        self.c: Any = _ffi.dlopen(str(library))
        names = {i: _ffi.string(self.c.ggml_type_name(i)).decode() for i in range(N_TYPES)}
        self.types = {
            name: i
            for i, name in names.items()
            if (self.c.ggml_is_quantized(i) or name in PLAIN) and name not in ACTIVATIONS
            # Removed types keep a number and have no blocks.
            and self.c.ggml_blck_size(i) > 0
        }  # fmt: skip

    def device(self, name: str) -> Pointer:
        """Return the ggml device called "CPU", or "CUDAn", which spac's library keeps out of ggml's registry.
        Raise ValueError when there is none."""
        if name.startswith("CUDA"):
            try:
                registration = self.c.ggml_backend_cuda_reg()
            except AttributeError:
                raise ValueError(f"no device {name}: this library was built without CUDA") from None
            number = int(name.removeprefix("CUDA") or 0)
            if number >= self.c.ggml_backend_reg_dev_count(registration):
                raise ValueError(f"no device {name}: CUDA finds fewer devices")
            return self.c.ggml_backend_reg_dev_get(registration, number)
        device = self.c.ggml_backend_dev_by_name(name.encode())
        if device == _ffi.NULL:
            raise ValueError(f"no device {name}")
        return device

    def description(self, device: Pointer) -> str:
        return _ffi.string(self.c.ggml_backend_dev_description(device)).decode()  # type: ignore[no-any-return]

    @contextmanager
    def backend(self, device: Pointer, n_threads: int = 1) -> Iterator[Pointer]:
        backend = self.c.ggml_backend_dev_init(device, _ffi.NULL)
        setter = self._function(device, "ggml_backend_set_n_threads", "void (*)(ggml_backend *, int)")
        if setter is not None:
            setter(backend, n_threads)
        try:
            yield backend
        finally:
            self.c.ggml_backend_free(backend)

    def extra_buffer_types(self, device: Pointer) -> dict[str, Pointer]:
        """Return the device's buffer types that hold weights in a form of their own, by name."""
        signature = "ggml_backend_buffer_type ** (*)(ggml_backend_device *)"
        getter = self._function(device, "ggml_backend_dev_get_extra_bufts", signature)
        found: dict[str, Pointer] = {}
        if getter is not None:
            types = getter(device)
            while types != _ffi.NULL and types[0] != _ffi.NULL:
                found[_ffi.string(self.c.ggml_backend_buft_name(types[0])).decode()] = types[0]
                types += 1
        return found

    def _function(self, device: Pointer, name: str, signature: str) -> Any:
        registration = self.c.ggml_backend_dev_backend_reg(device)
        address = self.c.ggml_backend_reg_get_proc_address(registration, name.encode())
        return None if address == _ffi.NULL else _ffi.cast(signature, address)

    def quantize(self, kind: int, numbers: Float32Array) -> bytes:
        """Return `numbers` [n_rows, n_per_row] in ggml type `kind`."""
        n_rows, n_per_row = numbers.shape
        out = _ffi.new("char[]", n_rows * self.c.ggml_row_size(kind, n_per_row))
        importance = np.ones(n_per_row, np.float32)
        self.c.ggml_quantize_chunk(
            kind, _ffi.from_buffer("float[]", numbers), out, 0, n_rows, n_per_row,
            _ffi.from_buffer("float[]", importance),
        )  # fmt: skip
        return bytes(_ffi.buffer(out))

    def context(self, n_tensors: int) -> Pointer:
        """Return a context for that many tensors and a graph. `memory` gives it memory and frees it."""
        size = n_tensors * self.c.ggml_tensor_overhead() + self.c.ggml_graph_overhead()
        return self.c.ggml_init({"mem_size": size, "mem_buffer": _ffi.NULL, "no_alloc": True})

    @contextmanager
    def memory(
        self, context: Pointer, backend: Pointer, buffer_type: Pointer | None = None, weights: bool = False
    ) -> Iterator[None]:
        """Allocate memory for all tensors of `context`, on `backend` or of `buffer_type`. Free both in the
        end."""
        if buffer_type is None:
            buffer = self.c.ggml_backend_alloc_ctx_tensors(context, backend)
        else:
            buffer = self.c.ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type)
        if buffer == _ffi.NULL:
            raise MemoryError("ggml could not allocate the tensors")
        if weights:
            self.c.ggml_backend_buffer_set_usage(buffer, 1)  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS
        try:
            yield
        finally:
            self.c.ggml_backend_buffer_free(buffer)
            self.c.ggml_free(context)

    def write(self, tensor: Pointer, data: bytes | npt.NDArray[Any]) -> None:
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        assert len(raw) == self.c.ggml_nbytes(tensor)
        self.c.ggml_backend_tensor_set(tensor, raw, 0, len(raw))

    def read(self, tensor: Pointer, shape: tuple[int, ...]) -> Float32Array:
        out = np.empty(shape, np.float32)
        assert out.nbytes == self.c.ggml_nbytes(tensor)
        self.c.ggml_backend_tensor_get(tensor, _ffi.from_buffer(out, require_writable=True), 0, out.nbytes)
        return out

    def graph(self, context: Pointer, outputs: list[Pointer]) -> Pointer:
        graph = self.c.ggml_new_graph(context)
        for tensor in outputs:
            self.c.ggml_build_forward_expand(graph, tensor)
        return graph

    def compute(self, backend: Pointer, graph: Pointer) -> None:
        status = self.c.ggml_backend_graph_compute(backend, graph)
        if status != 0:
            raise RuntimeError(f"ggml_backend_graph_compute gave status {status}")
