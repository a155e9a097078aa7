"""Plugin of pytest that lets llama.cpp's server tests start our program in place of the binary.

`SPAC_TEST_BINARY` names another binary, to compare: a test that fails there too needs another model.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

from tests.forked import Process, Programs
from tests.serve.llama_cpp.listed import LISTED

OTHER = os.environ.get("SPAC_TEST_BINARY", "")
RUNS_LISTED = bool(os.environ.get("SPAC_TEST_LISTED"))


LENGTHS = {"n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens"}
"""The fields of requests that give the answer's length."""
DRAFT = "stories15M-q4_0.gguf"
"""A draft model that tests download. The target takes its place."""


def _download(url: str, out: str) -> None:
    """Give our model for a download of a draft model. Raise OSError for anything else."""
    if not url.endswith(f"/{DRAFT}"):
        raise OSError(f"{url}: no test downloads anything here")
    Path(out).symlink_to(os.environ["SPAC_TEST_MODEL"])


class _Popen(Process):
    """Starts the program in a process that is forked from one with its imports."""

    programs: Programs

    def __init__(self, words: list[str], *, stdout: Any, env: dict[str, str], **_: object) -> None:
        log = sys.__stderr__ if stdout is sys.stdout else stdout
        started = self.programs.start(
            "tests.serve.llama_cpp.binary", words[1:], Path.cwd(), {**env, "OMP_WAIT_POLICY": "passive"}, log
        )
        self.__dict__.update(started.__dict__)

    def terminate(self) -> None:
        """Ask the program to end."""
        self.send_signal(signal.SIGTERM)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Change the module that starts servers before the tests' conftest imports it."""
    sys.path.insert(0, str(early_config.rootpath))
    wget = ModuleType("wget")
    wget.download = _download  # type: ignore[attr-defined]
    sys.modules["wget"] = wget
    import utils  # type: ignore[import-not-found]  # llama.cpp's

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["PORT"] = str(free.getsockname()[1])
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    process = utils.ServerProcess
    process.model_hf_repo = process.model_hf_file = None
    for name, preset in list(vars(utils.ServerPreset).items()):
        if isinstance(preset, staticmethod) and name != "load_all":
            setattr(utils.ServerPreset, name, staticmethod(_with_model(preset.__func__)))
    if OTHER:
        os.environ["LLAMA_SERVER_BIN_PATH"] = OTHER
    else:
        for name in ("make_request", "make_stream_request"):
            setattr(process, name, _with_length(getattr(process, name)))
        process.make_request = _without_case(process.make_request)
        os.environ["LLAMA_SERVER_BIN_PATH"] = "spac serve"
        utils.subprocess = SimpleNamespace(Popen=_Popen, TimeoutExpired=subprocess.TimeoutExpired)


def _with_length(ask: Any) -> Any:
    """Return a method that gives the answer's length with the request, if the server has an option for it.

    `spac serve` has no --n-predict: requests say how many tokens they want.
    """

    def asked(self: Any, method: str, path: str, data: Any = None, *rest: Any, **named: Any) -> Any:
        of_text = path.endswith(("completion", "completions", "/infill", "/responses"))
        if self.n_predict and of_text and isinstance(data, dict) and not LENGTHS & {*data}:
            data = {**data, "n_predict": self.n_predict}
        return ask(self, method, path, data, *rest, **named)

    return asked


def _without_case(ask: Any) -> Any:
    """Return a method whose answer's headers have names without case, as HTTP says."""

    def asked(*arguments: Any, **named: Any) -> Any:
        answer = ask(*arguments, **named)
        answer.headers = CaseInsensitiveDict(answer.headers)
        return answer

    return asked


def _with_model(preset: Any) -> Any:
    """Return a preset of a server with our model in place of a download."""

    def made() -> Any:
        server = preset()
        if server.model_hf_repo is not None:
            server.model_hf_repo = server.model_hf_file = None
            server.model_file = os.environ["SPAC_TEST_MODEL"]
        return server

    return made


@pytest.fixture(scope="session", autouse=True)
def _programs() -> Iterator[None]:
    if OTHER:
        yield
        return
    with Programs() as programs:
        _Popen.programs = programs
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that are listed. Raise UsageError for a pattern that fits none of all tests."""
    unused = {pattern for patterns in LISTED.values() for pattern in patterns}
    for item in items:
        name = item.nodeid.removeprefix("unit/").replace("[", "(").replace("]", ")")
        for reason, patterns in LISTED.items():
            if fits := {pattern for pattern in patterns if fnmatchcase(name, pattern)}:
                unused -= fits
                if not RUNS_LISTED:
                    item.add_marker(pytest.mark.skip(reason=reason))
    if unused and config.args_source is not pytest.Config.ArgsSource.ARGS:
        raise pytest.UsageError(f"listed, and no test: {sorted(unused)}")
