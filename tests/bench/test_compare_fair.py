"""Each side of the comparison runs at its best."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.compare.cells import run_cell
from bench.compare.job import Job, Result, Run
from bench.compare.ours import config_of
from bench.processes import ROOT, environment
from spac import env
from spac.errors import InputError
from tests.bench.comparisons import comparison_of

# Disposable threads begin and end within one decode, so a look at /proc would miss them. Instead, a function
# that stands before the C library's counts every creation.
COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
typedef int (*create)(pthread_t *, const pthread_attr_t *, void * (*)(void *), void *);
int threads_created = 0;
int pthread_create(pthread_t * thread, const pthread_attr_t * how, void * (*what)(void *), void * with) {
    __atomic_add_fetch(&threads_created, 1, __ATOMIC_SEQ_CST);
    return ((create) dlsym(RTLD_NEXT, "pthread_create"))(thread, how, what, with);
}
"""
DECODES = """
import ctypes, json, sys
from bench.compare import theirs
from bench.unpatched import Model, ThreadPool, start
created = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "threads_created")
start()
found = {}
for way in ("disposable", "attached"):
    if way == "disposable":
        attach, ThreadPool.attach = ThreadPool.attach, lambda pool, context: None
    else:
        ThreadPool.attach = attach
    # Of more threads than cores, some would wait for their turn in every barrier.
    pool = ThreadPool(2)
    target, draft = Model(sys.argv[2], pool, ctx=256, n_cpu_moe=4), Model(sys.argv[3], pool, ctx=256)
    before = created.value
    run = theirs.generate(target, draft, list(range(40)), 8, 3)
    found[way] = {"created": created.value - before, "steps": run.steps, "tokens": run.tokens}
    draft.close(), target.close(), pool.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library that counts the threads that a process creates."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    source = tmp_path_factory.mktemp("counter") / "counter.c"
    library = source.with_suffix(".so")
    source.write_text(COUNTER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def test_llama_cpp_creates_no_thread_while_it_decodes(
    twin: tuple[Path, Path], reference_lib: Path, counter: Path
) -> None:
    """The same count without the attached pool shows that the counter works."""
    done = subprocess.run(
        [sys.executable, "-c", DECODES, str(counter), *map(str, twin)],
        cwd=ROOT, env={**environment(reference_lib), "LD_PRELOAD": str(counter)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["attached"]["created"] == 0
    assert found["disposable"]["created"] >= found["disposable"]["steps"] > 1
    assert found["attached"]["tokens"] == found["disposable"]["tokens"]


def spac_job(target: Path, **values: Any) -> Job:
    standard = {"kind": "spac", "target": str(target), "prompts": [[5, 6, 7, 8]], "n_predict": 8, "ctx": 64}
    return Job(**{**standard, "threads": 1, "device": "simulated", "slots": "25%", **values})


def test_nothing_is_paged_beside_a_gpu() -> None:
    """Beside a GPU, weights are paged only if the job asks for it."""
    demo = Path("target.gguf")
    assert config_of(spac_job(demo, device="CUDA0")).paging == "off"
    assert config_of(spac_job(demo, device="CUDA0", paging="on")).paging == "on"
    assert [config_of(spac_job(demo, device=name)).paging for name in ("simulated", "cpu")] == [
        "auto",
        "auto",
    ]


def test_a_result_says_how_weights_lay(twin: tuple[Path, Path], tmp_path: Path) -> None:
    found = {
        mode: run_cell(spac_job(twin[0], paging=mode), tmp_path, mode, None, 60) for mode in ("on", "off")
    }
    assert [result.paged for result in found.values()] == [True, False], found
    assert found["on"].host_memory == "paged" != found["off"].host_memory
    assert found["off"].threads == 1


def test_the_first_prompt_is_in_no_figure(twin: tuple[Path, Path], tmp_path: Path) -> None:
    runs = [Run(8, 0.5, 0.6, seconds, [1, 2], 2) for seconds in (9.0, 1.0)]
    assert [run.decode_s for run in Result(runs=[asdict(run) for run in runs]).warm] == [1.0]
    with pytest.raises(InputError, match="--texts 1"):
        comparison_of(twin, tmp_path, "--texts", "1").run()


def test_cells_keep_what_things_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cell begins with the unit costs that the cell before it kept."""
    monkeypatch.setenv(env.CACHE_HOME.name, str(tmp_path))
    assert environment(None)[env.CACHE_HOME.name] == str(tmp_path)
    assert environment(None)["HOME"] == os.environ["HOME"]


def test_llama_cpp_without_pinned_buffers_is_a_row_beside_a_gpu(
    twin: tuple[Path, Path], tmp_path: Path
) -> None:
    """These rows come after those that decide. On the CPU alone, weights are repacked anyway."""
    rows = {}
    for device in ("CUDA0", "simulated"):
        subject = comparison_of(twin, tmp_path, device=device)
        rows[device] = [cell.engine for cell in subject.grid]
    assert not any(engine.no_host for engine in rows["simulated"])
    names = [engine.name for engine in rows["CUDA0"]]
    mine = [engine for engine in rows["CUDA0"] if engine.no_host]
    assert [engine.name for engine in mine] == [
        "llama.cpp --n-cpu-moe --no-host, draft", "llama.cpp --n-cpu-moe --no-host"
    ]  # fmt: skip
    assert all(engine.tuned and engine.kind == "llama.cpp" for engine in mine)
    assert names.index("llama.cpp --n-cpu-moe") < names.index(mine[0].name)


LOADS = """
import json, sys
from bench import unpatched
unpatched.start()
load, found = unpatched.api.llama_model_load_from_file, []
def watched(path, params):
    found.append(bool(params.no_host))
    return load(path, params)
unpatched.api.llama_model_load_from_file = watched
for no_host in (False, True):
    unpatched.Model(sys.argv[1], unpatched.ThreadPool(1), ctx=64, n_cpu_moe=4, no_host=no_host).close()
print(json.dumps(found))
"""


def test_llama_cpp_loads_without_pinned_buffers(twin: tuple[Path, Path], reference_lib: Path) -> None:
    """The parameter counts only before the model is loaded. Once it was set behind that."""
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(twin[0])],
        cwd=ROOT, env=environment(reference_lib), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == [False, True]
