"""csrc/kernels gives ggml's results, bit for bit, in each of its instruction sets that this CPU can run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cffi import FFI
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core, _library
from spac.machine.arrays import Float32Array
from tests.compiled import compiler_and_cpu, kept
from tests.conftest import ROOT
from tests.kernels.conftest import answers_of
from tools.patches.ggml import Ggml
from tools.patches.operators import Shape, operator, weights_on
from tools.patches.source import published, sdist

KINDS = (
    "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs",
    "mxfp4", "nvfp4", "iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_s", "iq1_s", "iq1_m",
)  # fmt: skip
# CPU features that the wide kernels need, by their names in /proc/cpuinfo.
WIDE = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
# Instruction sets for which the kernels compute differently: compiler flags, and required CPU features.
SETS = {
    "256 bits": (["-mavx2", "-mfma", "-mf16c"], {"avx2", "fma", "f16c"}),
    "256 bits, VNNI": (["-mavx2", "-mfma", "-mf16c", "-mavxvnni"], {"avx_vnni"}),
    "512 bits": (["-march=native"], WIDE),
}
HEADERS = [
    *(f"ggml/include/{name}.h" for name in ("ggml", "ggml-cpu", "ggml-backend", "ggml-alloc")),
    "ggml/src/ggml-common.h",
]

_ffi = FFI()
_ffi.cdef("""
const char * kernel_names(int trusted);
int          kernel_block(int type);
int          kernel_has(int type, int way);
int          kernel_dot(int type, int way, int64_t n, const char * weights, size_t stride, int64_t n_weights,
                        const char * inputs, size_t input_bytes, float * results, int64_t n_inputs);
int          quantization_is_trusted(void);
void         quantize(const float * x, void * y, int64_t n);

typedef void (*ggml_from_float_t)(const float *, void *, int64_t);
typedef void (*ggml_vec_dot_t)(int n, float * s, size_t, const void * x, size_t, const void * y, size_t, int);
struct ggml_type_traits_cpu {
    ggml_from_float_t from_float; ggml_vec_dot_t vec_dot; int vec_dot_type; int64_t nrows;
};
const struct ggml_type_traits_cpu * ggml_get_type_traits_cpu(int type);
size_t ggml_row_size(int type, int64_t ne);
int share(int64_t n_matrices, int64_t n_rows, const int64_t * n_inputs, int nth, unsigned seed, int uneven,
          int32_t * times);
extern int64_t (*ggml_cpu_mul_mat_id)(int ith, int nth, const void * dst, const void * wdata,
                                      const int64_t * counts, const int32_t * rows, void * counter);
extern bool (*ggml_cpu_mul_mat)(int ith, int nth, const void * dst, const void * wdata, void * counter);
extern ggml_from_float_t ggml_cpu_quantize_q8_K;
""")


def has(features: set[str]) -> bool:
    """Return true if this CPU has all the features."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])
    return features <= set(flags)


@dataclass
class Kernels:
    """The kernels of one instruction set, and ggml's own functions."""

    c: Any
    ggml: Any
    types: dict[str, int]

    def names(self, trusted: bool) -> list[str]:
        return _ffi.string(self.c.kernel_names(trusted)).decode().split()  # type: ignore[no-any-return]

    def quantized(self, kind: int, inputs: Float32Array) -> bytes:
        """Return the rows [n_inputs, n] as ggml quantizes them."""
        n = inputs.shape[1]
        row = self.ggml.ggml_row_size(kind, n)
        out = _ffi.new("char[]", row * len(inputs))
        for i, values in enumerate(inputs):
            source = _ffi.from_buffer("float[]", values)
            self.ggml.ggml_get_type_traits_cpu(kind).from_float(source, out + i * row, n)
        return bytes(_ffi.buffer(out))

    def theirs(
        self, kind: str, n: int, weights: bytes, inputs: bytes, n_input: int, stride: int
    ) -> Float32Array:
        """Return ggml's results [n_input, n_weight]. Each comes from one vec_dot."""
        vec_dot, row = self.ggml.ggml_get_type_traits_cpu(self.types[kind]).vec_dot, len(inputs) // n_input
        results = np.empty((n_input, len(weights) // stride), np.float32)
        x, y = _ffi.from_buffer(weights), _ffi.from_buffer(inputs)
        out = _ffi.from_buffer("float[]", results, require_writable=True)
        for i in range(results.size):
            at, r = divmod(i, results.shape[1])
            vec_dot(n, out + i, 0, x + r * stride, 0, y + at * row, 0, 1)
        return results

    def ways(self, kind: str) -> list[int]:
        """Return the ways that are used: 1 for 256 bits, 2 for 512 bits."""
        return [way for way in (1, 2) if self.c.kernel_has(self.types[kind], way)]

    def ours(
        self, kind: str, way: int, n: int, weights: bytes, inputs: bytes, n_input: int, stride: int
    ) -> Float32Array | None:
        """Return our kernel's results [n_input, n_weight], or None where it leaves these inputs to ggml."""
        n_weight = len(weights) // stride
        results = np.full((n_input + 1, n_weight), 7, np.float32)  # no kernel may write the last row
        out = _ffi.from_buffer("float[]", results, require_writable=True)
        done = self.c.kernel_dot(
            self.types[kind], way, n, _ffi.from_buffer(weights), stride, n_weight, _ffi.from_buffer(inputs),
            len(inputs) // n_input, out, n_input,
        )  # fmt: skip
        assert np.all(results[-1] == 7)
        return results[:-1] if done else None


@pytest.fixture(scope="session")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sdist() is None:
        pytest.skip("llama.cpp's source is not in the cache: no build on this machine has fetched it")
    folder = tmp_path_factory.mktemp("ggml")
    for name, text in published(*HEADERS).items():
        (folder / Path(name).name).write_text(text)
    return folder


def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    return found or pytest.skip("no C++ compiler here")


@pytest.fixture(scope="session")
def libraries(headers: Path, compiled_store: Path) -> dict[str, Path]:
    """Return the kernels for each instruction set of this CPU. All sources are compiled in parallel."""
    mine = Path(__file__).with_name("dot.cpp")
    # These sources need more of ggml, or measure times.
    names = ("expert_nodes", "experts", "masked_cells", "operators", "scale_rows", "trial")
    beside = {f"{name}.cpp" for name in names}
    sources = [file for file in sorted((ROOT / "csrc/kernels").glob("*.cpp")) if file.name not in beside]
    sources.append(mine)
    sets = {name: flags for name, (flags, needed) in SETS.items() if has(needed)}
    common = ["-std=c++17", "-O0", "-ffp-contract=off", "-w", "-fPIC"]

    def make(folder: Path) -> None:
        objects = {
            (name, file): folder / f"{i}-{file.stem}.o" for i, name in enumerate(sets) for file in sources
        }
        folders = [f"-I{ROOT / 'csrc'}", "-isystem", headers]
        shared = {name: folder / f"{i}.h" for i, name in enumerate(sets)}
        for header in shared.values():
            header.write_text('#include "kernels/tile.h"\n#include <memory>\n#include <random>\n')
        precompiling = [
            [compiler(), *common, *sets[name], *folders, "-x", "c++-header", header, "-o", f"{header}.gch"]
            for name, header in shared.items()
        ]
        compiling = [
            [compiler(), *common, *sets[name], *folders, "-include", shared[name], "-c", file, "-o", out]
            for (name, file), out in objects.items()
        ]
        linking = [
            [compiler(), "-shared", "-Wl,-Bsymbolic,-z,defs", *(objects[name, file] for file in sources),
             "-o", folder / f"{name}.so", _library.library_path()]
            for name in sets
        ]  # fmt: skip
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for commands in (precompiling, compiling, linking):
                list(pool.map(lambda words: subprocess.run(words, check=True, timeout=400), commands))
        for out in (*objects.values(), *folder.glob("*.gch")):
            out.unlink()

    files = [*sorted((ROOT / "csrc").rglob("*.h")), *sorted(headers.iterdir()), *sources]
    options = repr((common, sets, str(_library.library_path())))
    folder = kept(compiled_store, "kernels", [*files, options, compiler_and_cpu(compiler())], make)
    return {name: folder / f"{name}.so" for name in sets}


@pytest.fixture(scope="session", params=SETS)
def kernels(request: pytest.FixtureRequest, libraries: dict[str, Path]) -> Kernels:
    if request.param not in libraries:
        pytest.skip(f"this CPU has not all of {', '.join(sorted(SETS[request.param][1]))}")
    ggml = Ggml(_library.library_path())
    ours, theirs = _ffi.dlopen(str(libraries[request.param])), _ffi.dlopen(str(_library.library_path()))
    return Kernels(ours, theirs, ggml.types)


def test_all_types_have_kernels_that_are_used(kernels: Kernels) -> None:
    assert sorted(kernels.names(False)) == sorted(KINDS)
    assert kernels.names(True) == kernels.names(False)
    assert {tuple(kernels.ways(kind)) for kind in KINDS} in ({(1,)}, {(1, 2)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_block", [3, 130])
def test_any_length_of_rows(kernels: Kernels, kind: str, n_block: int) -> None:
    """One row of input has kernels of its own for several types, up to a length. Weights are any bytes."""
    rng, n_weight = np.random.default_rng(n_block), 13
    number = kernels.types[kind]
    n = n_block * kernels.c.kernel_block(number)
    stride = kernels.ggml.ggml_row_size(number, n)
    weights = rng.bytes(n_weight * stride)
    multiplied = kernels.ggml.ggml_get_type_traits_cpu(number).vec_dot_type
    for n_input in (1, 3):
        inputs = kernels.quantized(multiplied, rng.standard_normal((n_input, n), np.float32))
        theirs = kernels.theirs(kind, n, weights, inputs, n_input, stride)
        for way in kernels.ways(kind):
            ours = kernels.ours(kind, way, n, weights, inputs, n_input, stride)
            assert ours is not None
            assert_same(ours.reshape(theirs.shape), theirs)


def test_512_bits_without_vnni_are_256_bits() -> None:
    """Such a build has the code of "256 bits", which the tests above and below run."""
    flags = [*SETS["256 bits"][0], *(f"-m{name}" for name in sorted(WIDE - {"avx512_vnni"}))]
    done = subprocess.run(
        [compiler(), "-std=c++17", "-E", "-dM", *flags, "-x", "c++", ROOT / "csrc/kernels/lanes.h"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert re.findall(r"#define (SPAC_LANES_\w+)", done.stdout) == ["SPAC_LANES_ONE"]


def test_the_library_uses_them() -> None:
    if not all(f"{name} = 1" in _core.system_info() for name in ("AVX2", "FMA", "F16C")):
        pytest.skip("this build has no AVX2")
    assert sorted(_core.trusted_cpu_kernels()) == sorted(_core.cpu_kernels()) == sorted(KINDS)


@pytest.mark.parametrize("way", ["ggml", "256"])
@pytest.mark.parametrize(("n_tokens", "limit"), [(1, 8), (5, 8), (40, 8)])
def test_operators_ask_for_them(ggml, n_tokens, limit, way) -> None:
    """mul_mat_id asks once for all experts. It computes the experts that have too many rows by itself."""
    if "q4_K" not in _core.trusted_cpu_kernels():
        pytest.skip("this build has no kernel for q4_K")
    shape = Shape("q4_K", n_tokens, "mul_mat_id", broadcast=True)
    device = ggml.device("CPU")
    library = _ffi.dlopen(str(_library.library_path()))
    signature = "int64_t(int, int, const void *, const void *, const int64_t *, const int32_t *, void *)"
    with ggml.backend(device) as backend, weights_on(ggml, backend, device, shape) as weights:
        assert weights is not None
        with operator(ggml, backend, shape, weights) as it:
            ways = _core.chosen_cpu_kernels("q4_K")
            try:
                with answers_of(_ffi, "ggml_cpu_mul_mat_id", signature) as answers:
                    _core.choose_cpu_kernels("q4_K", way, way, False)
                    (ours,) = it.run(shape.ids())
                    _core.set_cpu_kernels(False)
                    (theirs,) = it.run(shape.ids())
            finally:
                _core.set_cpu_kernels(True)
                _core.choose_cpu_kernels("q4_K", *ways)
    n_thread = len(answers) // 2
    assert answers == [limit] * n_thread + [0] * n_thread
    assert library.ggml_cpu_quantize_q8_K != _ffi.NULL
    assert library.ggml_cpu_mul_mat != _ffi.NULL
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@given(data=st.data())
@settings(max_examples=200)
def test_every_row_is_shared_out_once(kernels: Kernels, data: st.DataObject) -> None:
    """Each row of a matrix that has rows of input is computed exactly once, at any speed of the threads."""
    n_matrix, n_row = data.draw(st.integers(1, 20), "matrices"), data.draw(st.integers(1, 3000), "rows")
    few = st.sampled_from([0, 0, 1, 1, 2, 3, 7, 500])
    n_input = np.array(data.draw(st.lists(few, min_size=n_matrix, max_size=n_matrix), "inputs"), np.int64)
    times = np.zeros((n_matrix, n_row), np.int32)
    n_run = kernels.c.share(
        n_matrix, n_row, _ffi.from_buffer("int64_t[]", n_input), data.draw(st.integers(1, 70), "threads"),
        data.draw(st.integers(0, 2**31), "order"), data.draw(st.booleans(), "uneven"),
        _ffi.from_buffer("int32_t[]", times, require_writable=True),
    )  # fmt: skip
    assert n_run >= 0
    assert np.array_equal(times, np.broadcast_to((n_input > 0)[:, None], times.shape))


def test_where_cores_are_uneven_all_rows_go_in_small_pieces(kernels: Kernels) -> None:
    """A slow core then comes last by one piece at most: an eighth of a thread's share."""
    n_input, times = np.ones(2, np.int64), np.zeros((2, 1408), np.int32)
    n_run = kernels.c.share(
        2, 1408, _ffi.from_buffer("int64_t[]", n_input), 4, 1, 1,
        _ffi.from_buffer("int32_t[]", times, require_writable=True),
    )  # fmt: skip
    assert 4 * 8 <= n_run <= 4 * 8 + 1
    assert np.all(times == 1)


def assert_same(ours: Float32Array, theirs: Float32Array) -> None:
    """Assert that the results are equal bit for bit. Any NaN equals any other NaN."""
    number = ~np.isnan(theirs)
    assert np.array_equal(theirs[number].view(np.uint32), ours[number].view(np.uint32))
    assert np.all(np.isnan(ours[~number]))


def products(ggml: Ggml, backend: Any, kind: int, n_token: int) -> Float32Array:
    """Return products [n_token, 131] of a dense matrix and random inputs. They are the same at every call."""
    rng, n, n_out = np.random.default_rng(kind), 512, 131
    context = ggml.context(3)
    weights = ggml.c.ggml_new_tensor_2d(context, kind, n, n_out)
    inputs = ggml.c.ggml_new_tensor_2d(context, ggml.F32, n, n_token)
    out = ggml.c.ggml_mul_mat(context, weights, inputs)
    graph = ggml.graph(context, [out])
    with ggml.memory(context, backend):
        ggml.write(weights, rng.bytes(ggml.c.ggml_nbytes(weights)))
        ggml.write(inputs, rng.standard_normal((n_token, n), np.float32))
        ggml.compute(backend, graph)
        return ggml.read(out, (n_token, n_out))


@pytest.mark.parametrize("kind", KINDS)
def test_dense_matrices(ggml, kind) -> None:
    """mul_mat gives the same with and without the kernels, with one thread and with three, for types that
    llamafile has kernels for too."""
    ways = _core.chosen_cpu_kernels(kind)
    for n_thread in (1, 3):
        with ggml.backend(ggml.device("CPU"), n_thread) as backend:
            for n_token in (1, 2, 5, 7, 21):
                try:
                    _core.choose_cpu_kernels(kind, "512", "512", True)
                    ours = products(ggml, backend, ggml.types[kind], n_token)
                    _core.set_cpu_kernels(False)
                    theirs = products(ggml, backend, ggml.types[kind], n_token)
                finally:
                    _core.set_cpu_kernels(True)
                    _core.choose_cpu_kernels(kind, *ways)
                assert_same(ours, theirs)


def test_llamafile_s_results_decide() -> None:
    """The kernels replace llamafile's where its results are those of ggml's products of pairs."""
    kinds = [kind for kind in ("q4_0", "q5_0", "q8_0", "iq4_nl") if kind in _core.trusted_cpu_kernels()]
    found, _ = _core.time_cpu_kernels(kinds, 1, 0.0)
    assert kinds
    for kind in kinds:
        one, several, dense = _core.chosen_cpu_kernels(kind)
        _core.choose_cpu_kernels(kind, one, several, False)
        left = _core.chosen_cpu_kernels(kind)
        _core.choose_cpu_kernels(kind, one, several, True)
        taken = _core.chosen_cpu_kernels(kind)
        _core.choose_cpu_kernels(kind, one, several, dense)
        assert left == (one, several, False)
        assert taken == (one, several, "dense" in found[kind])
