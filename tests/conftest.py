"""Fixtures for every test: tiny models, written once a session, and the unpatched reference library."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# This must come before any library starts its threads. They spin when they are idle, and two busy processes
# on two cores then slow each other down a hundredfold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # tools.models must be importable in every import mode of pytest
    sys.path.insert(0, str(ROOT))

# Without a GPU, tests that name no device show the split on the simulated device.
os.environ.setdefault("SPAC_DEVICE", "simulated")

# No test starts with what another one has learned, unless it asks for that.
os.environ["SPAC_STATE"] = "off"

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.forked import Programs  # noqa: E402
from tools.compare import reference_library  # noqa: E402
from tools.models import FAMILIES, Shape, write_model  # noqa: E402

TinyModel = Callable[..., Path]
AGREEMENT = 0.7
"""The share of the chain that the draft of `twin` knows."""

# No test fails because it is slow.
settings.register_profile("spac", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spac")


def pytest_collection_finish() -> None:
    """Hide the collected tests from the garbage collector, which would take a fifth of the suite's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of a file to one process: each process makes the fixtures that it needs."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def costs_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Learn costs of computing and copying anew for this session, and read no options of the user's file.

    Costs that the user's cache holds from a busy day would decide draft lengths. The cache's other entries
    stay visible.
    """
    from spac import env

    kept, home = env.cache_folder(), tmp_path_factory.mktemp("cache")
    (home / "spac").mkdir()
    for entry in kept.iterdir() if kept.is_dir() else ():
        if entry.name != "costs":
            (home / "spac" / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        for variable in (env.CACHE_HOME, env.CONFIG_HOME):
            patch.setenv(variable.name, str(home))
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return a function that writes a random model at its first use and returns the model's path.

    Calls are `tiny_model("qwen3moe", Shape(...))` or `tiny_model("qwen3moe", n_expert=5, types={...})`. Tests
    must not change the file.
    """
    folder = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def make(family: str, shape: Shape | None = None, **sizes: object) -> Path:
        if shape is None:
            default = FAMILIES[family].default
            shape = Shape(**{**vars(default), **sizes})
        key = f"{family} {shape}"
        if key not in made:
            made[key] = write_model(folder / f"{family}-{len(made)}.gguf", family, shape)
        return made[key]

    return make


@pytest.fixture(scope="session")
def compiled_store(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of tests/compiled.py."""
    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    return tmp_path_factory.mktemp("compiled") if cache is None else cache.mkdir("compiled")


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Yield a starter of spac's programs."""
    with Programs() as made:
        yield made


@pytest.fixture(scope="session")
def reference_lib() -> Path:
    """Return the folder of the stock library. The test is skipped when there is none."""
    folder = reference_library()
    if folder is None:
        pytest.skip(
            "no stock library to compare with: build with -DSPAC_BUILD_REFERENCE=ON or set SPAC_REFERENCE_LIB"
        )
    return folder


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (target, draft) of one tiny twin, as the program writes them."""
    from tools.twin.__main__ import main

    folder = tmp_path_factory.mktemp("twin")
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    assert main(["tiny", str(target), "--draft", str(draft), "--agreement", str(AGREEMENT)]) == 0
    return target, draft
