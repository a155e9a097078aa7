"""The trial of another version of llama-cpp-python: hunks that do not fit, tests that fail, the pin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import bump_llama_cpp
from tools.bump_llama_cpp import CHECKS, PIN, ROOT, BrokenError, Trial, copy_tree, llama_source, main

PATCH = "--- a/src/a.c\n+++ b/src/a.c\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n@@ -3,2 +3,2 @@\n three\n-four\n+4\n"
OTHER = "--- a/src/b.c\n+++ b/src/b.c\n@@ -1 +1 @@\n-one\n+1\n"
TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2, "not equal"
def test_skips(): pytest.skip("no reason")
"""


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return a trial whose source is one file, with two patches."""
    (tmp_path / "tree/patches").mkdir(parents=True)
    (tmp_path / "tree/patches/0001-a.patch").write_text(PATCH)
    (tmp_path / "tree/patches/0002-b.patch").write_text(OTHER)
    files = [("src/a.c", b"one\ntwo\nthree\n4!\n")]
    monkeypatch.setattr(llama_source, "files_of_sdist", lambda _sdist: iter(files))
    made = Trial("1.2.3", tmp_path)
    made.sdist = tmp_path / "none.tar.gz"
    return made


def test_hunks_that_do_not_fit_are_named(trial):
    with pytest.raises(BrokenError) as broken:
        trial.patch()
    assert broken.value.result.startswith("3 hunks do not fit")
    assert broken.value.faults == [
        "0001-a.patch: the hunk '@@ -3,2 +3,2 @@' of src/a.c fits nowhere",
        "0002-b.patch: there is no src/b.c",
        "0002-b.patch: the hunk '@@ -1 +1 @@' of src/b.c fits nowhere",
    ]
    assert (trial.partly / "src/a.c").read_text() == "one\n2\nthree\n4!\n"


def test_tests_that_fail_are_named(trial, monkeypatch):
    """The environment's Python is this one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    trial.python.parent.mkdir(parents=True)
    trial.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    trial.python.chmod(0o755)
    (trial.tree / "test_some.py").write_text(TESTS)
    with pytest.raises(BrokenError) as broken:
        trial.test(["test_some.py"])
    assert broken.value.result == "1 passed, 1 skipped, 1 failed"
    assert [fault.partition(": ")[0] for fault in broken.value.faults] == ["test_some::test_fails"]
    assert "not equal" in broken.value.faults[0]
    with pytest.raises(BrokenError, match="without a report"):
        trial.test(["--no-such-option"])


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("a.c:3: error: no such thing\nnoise\n", "a.c:3: error: no such thing"),
        (
            "ok\nCMake Error at x:6 (y):\n  It is\n\n    not there.\nCall Stack\n",
            "CMake Error at x:6 (y): It is not there.",
        ),
        ("first\nlast\n", "last"),
    ],
)
def test_errors_of_a_build_are_the_faults(trial, output, fault):
    with pytest.raises(BrokenError, match="it does not compile") as broken:
        trial.run(["sh", "-c", 'printf "%s" "$1"; exit 1', "sh", output], "it does not compile")
    assert broken.value.faults[-1] == fault


def test_a_version_that_is_not_there(tmp_path, monkeypatch, capsys):
    def refuse(version, folder):
        raise llama_source.SourceError(f"pip could not download llama-cpp-python=={version}: none")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(llama_source, "download_sdist", refuse)
    assert main(["9.9.9", "--folder", str(tmp_path / "trial")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "could not download llama-cpp-python==9.9.9" in err
    with pytest.raises(SystemExit) as refused:
        main(["../9"])
    assert refused.value.code == 2


@pytest.mark.parametrize(("keep", "faults"), [(True, []), (False, []), (False, ["one broke"])])
def test_the_pin(tmp_path, monkeypatch, capsys, keep, faults):
    def steps(trial):
        trial.pin = "version 1.2.3\nsha256 0\n"
        yield "tests: all", "some", faults

    monkeypatch.setattr(bump_llama_cpp, "ROOT", tmp_path)
    monkeypatch.setattr(bump_llama_cpp, "steps", steps)
    (tmp_path / PIN).write_text(before := "version 1.0.0\nsha256 1\n")
    assert main(["1.2.3", *(["--keep"] if keep else [])]) == len(faults)
    assert (tmp_path / PIN).read_text() == ("version 1.2.3\nsha256 0\n" if keep else before)
    out = capsys.readouterr().out
    assert ("one broke" in out) == bool(faults)
    assert f"{PIN} says {'1.2.3' if keep else '1.0.0'}" in out


def test_the_copy_is_the_tree(tmp_path):
    if subprocess.run(["git", "-C", ROOT, "rev-parse"], capture_output=True).returncode != 0:
        pytest.skip("this is no checkout of git")
    copy_tree(tmp_path / "tree")
    assert (tmp_path / "tree" / PIN).read_bytes() == (ROOT / PIN).read_bytes()
    assert not (tmp_path / "tree/build").exists()
    names = {path.name for path in (ROOT / "patches").glob("*.patch")}
    assert {path.name for path in Trial("1.2.3", tmp_path).patches} == names


def test_patches_that_were_made_anew_are_taken(trial, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bump_llama_cpp, "copy_tree", lambda _to: None)
    monkeypatch.setattr(llama_source, "sha256_of", lambda _path: "0")
    (tmp_path / "spac").mkdir()
    (tmp_path / "spac/llama_cpp_python-1.2.3.tar.gz").touch()
    trial.ported = tmp_path / "ported"
    trial.ported.mkdir()
    (trial.ported / "0001-a.patch").write_text(PATCH.replace("-four", "-4!"))
    trial.source()
    assert trial.patch() == "1 apply"
    with pytest.raises(SystemExit) as refused:
        main(["1.2.3", "--patches", str(tmp_path)])
    assert refused.value.code == 2
    assert "there is no .patch file in it" in capsys.readouterr().err


def test_the_checks_are_there():
    assert not [path for paths in CHECKS.values() for path in paths if not (ROOT / path).exists()]
