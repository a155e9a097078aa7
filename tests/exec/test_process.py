"""A program finds the same world as with Python, in its child processes too, and its llama_cpp is spac's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from spac.exec import START
from tests.cli.conftest import Outcome, environment
from tests.exec.conftest import EXEC, outcome
from tests.llama_cpp_python.conftest import DRAFT, TARGET

SELF = """
import json, signal, sys
loaded = [name for name in sys.modules if name.split(".")[0] in ("spac", "llama_cpp", "numpy")]
hidden = getattr(sys.modules.get("sitecustomize"), "mark", None)
print(json.dumps([sys.argv, sys.path, __name__, __file__, __spec__ and __spec__.name, __package__,
                  sys.executable, sys.orig_argv, str(sys.flags), str(signal.getsignal(signal.SIGINT)),
                  loaded, hidden]))
"""
MODEL = f"""
from llama_cpp import Llama
def found():
    llm = Llama({str(TARGET)!r}, n_ctx=128, n_threads=1, verbose=False)
    text = llm("def f(", max_tokens=4, temperature=0)["choices"][0]["text"]
    return [type(llm).__module__, str(llm.engine.config.slots), str(llm.engine.config.draft), text]
"""
CHILDREN = """
import json, multiprocessing, subprocess, sys
import model
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(model.found)
    code = "import json, model; print(json.dumps(model.found()))"
    run = subprocess.run([sys.executable, "-c", code], cwd={folder!r}, check=True, stdout=subprocess.PIPE)
    print(json.dumps([model.found(), spawned, json.loads(run.stdout)]))
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    "words", [["app.py", "-x", "--", "y"], ["-m", "app", "-x"], ["folder", "x"]], ids=str
)
def test_the_same_world(run_python, run_exec, tmp_path, words):
    """A sitecustomize module on PYTHONPATH runs too. A process that does not use llama_cpp loads nothing."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "site").mkdir()
    write(tmp_path, app=SELF)
    write(tmp_path / "folder", __main__=SELF)
    write(tmp_path / "site", sitecustomize="mark = 'seen'")
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    expected = run_python(*words, PYTHONPATH=path)
    assert json.loads(expected.out)[-2:] == [[], "seen"]
    assert run_exec("--slots", 9, *words, PYTHONPATH=path) == expected


@pytest.mark.parametrize("code", [
    "import sys; sys.exit(7)", "def f():\n    raise ValueError('x')\nf()",
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "print(input())", "import nothing", "1 +",
])  # fmt: skip
def test_the_same_end(run_python, run_exec, tmp_path, code):
    write(tmp_path, app=code)
    assert run_exec("app.py") == run_python("app.py")


def test_a_command_of_this_environment(run_exec, tmp_path):
    command = tmp_path / "bin" / "a-tool"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv, sys.path[0])\n")
    command.chmod(0o755)
    done = run_exec("a-tool", "-x", PATH=str(command.parent))
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{[str(command), '-x']} {command.parent}\n"


def test_child_processes(run_exec, tmp_path):
    """Options reach them, and a relative path is the one that the user meant, in every folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "draft.gguf").symlink_to(DRAFT)
    write(tmp_path, app=CHILDREN.format(folder=str(elsewhere)), model=MODEL)
    write(elsewhere, model=MODEL)
    done = run_exec("--slots", 9, "--draft", "draft.gguf", "app.py")
    assert done.code == 0, done.err
    own, *children = json.loads(done.out)
    assert own[:3] == ["spac.llama_cpp_python.llama", "9", str(tmp_path / "draft.gguf")]
    assert children == [own, own]


USES_SPAC = """
import {first}
import llama_cpp, spac
llm = llama_cpp.Llama({model!r}, n_ctx=64, n_threads=1, verbose=False)
print(llm.engine.config.slots)
spac.enable(slots=5)
print(llama_cpp.Llama({model!r}, n_ctx=64, n_threads=1, verbose=False).engine.config.slots)
"""


@pytest.mark.parametrize("first", ["spac.llama_cpp_python.enable", "spac.engine", "llama_cpp.llama_grammar"])
def test_a_program_that_knows_spac(run_exec, tmp_path, first):
    """A module of spac may import llama_cpp first. The program's own `enable` replaces the options."""
    write(tmp_path, app=USES_SPAC.format(first=first, model=str(TARGET)))
    done = run_exec("--slots", 9, "app.py")
    assert (done.code, done.out) == (0, "9\n5\n"), done.err


def test_a_python_without_spac_keeps_its_llama_cpp(tmp_path):
    """It stands for a child process of another environment, which has a llama_cpp of its own."""
    venv.create(tmp_path / "other", symlinks=True)
    write(tmp_path, llama_cpp="Llama = 'theirs'", app="import llama_cpp; print(llama_cpp.Llama)")
    command = [tmp_path / "other" / "bin" / "python", "app.py"]
    assert outcome(command, tmp_path, PYTHONPATH=str(START)) == Outcome(0, "theirs\n", "")


ENDLESS = f"""
from llama_cpp import Llama
llm = Llama({str(TARGET)!r}, n_ctx=2048, n_threads=1, verbose=False)
llm("def f(", max_tokens=2)
print("ready", flush=True)
while True:
    llm("def f(", max_tokens=2000)
"""


def test_ctrl_c(tmp_path):
    write(tmp_path, app=ENDLESS)
    program = subprocess.Popen(
        [*EXEC, "--slots", "9", "app.py"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT  # Python's own end: exit code 130 in a shell
    assert err.startswith("Traceback")
    assert err.splitlines()[1].strip().startswith(f'File "{tmp_path / "app.py"}"')
    assert err.splitlines()[-1] == "KeyboardInterrupt"
