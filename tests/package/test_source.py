"""The build gets llama.cpp's source through a cache and checks its hash. Errors tell why it cannot be had."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"an sdist"


@pytest.fixture
def llama_source(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "cmake"))
    import llama_source

    return llama_source


@pytest.fixture
def pip(llama_source, monkeypatch):
    """Replace pip by a function that writes CONTENT as the sdist. Return the list of its calls."""
    calls = []

    def run(command, **options):
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / "llama_cpp_python-1.0.tar.gz").write_bytes(CONTENT)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(llama_source.subprocess, "run", run)
    return calls


def test_the_pin(llama_source):
    version, sha256 = llama_source.read_pin(ROOT / "LLAMA_CPP_VERSION")
    assert version[0].isdigit()
    assert len(sha256) == 64


def test_the_sdist_is_fetched_once(llama_source, pip, tmp_path):
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    for _ in range(2):
        assert llama_source.fetch_sdist("1.0", sha256, tmp_path).read_bytes() == CONTENT
    assert len(pip) == 1
    # A damaged sdist is fetched again.
    (tmp_path / "llama_cpp_python-1.0.tar.gz").write_bytes(b"half")
    assert llama_source.fetch_sdist("1.0", sha256, tmp_path).read_bytes() == CONTENT
    assert len(pip) == 2


def test_another_content_is_refused(llama_source, pip, tmp_path):
    with pytest.raises(llama_source.SourceError, match="LLAMA_CPP_VERSION says 0000"):
        llama_source.fetch_sdist("1.0", "0000", tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_network(llama_source, monkeypatch, tmp_path):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "first\nERROR: no matching distribution\n")

    monkeypatch.setattr(llama_source.subprocess, "run", run)
    with pytest.raises(llama_source.SourceError, match=r"no matching distribution; .*-DSPAC_LLAMA_CPP_DIR"):
        llama_source.fetch_sdist("1.0", "0000", tmp_path)


def test_a_cache_folder_that_cannot_be_written(llama_source, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert llama_source.cache_folder(tmp_path / "build") == tmp_path / "build" / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert llama_source.cache_folder(tmp_path / "build") == tmp_path / "cache" / "spac"


def test_a_local_tree_that_is_none(llama_source, tmp_path):
    with pytest.raises(llama_source.SourceError, match=r"is not a llama\.cpp tree"):
        list(llama_source.files_of_folder(tmp_path))


def test_the_version_is_written_once(monkeypatch):
    """The extra with llama-cpp-python comes from the pin. Our version comes from the package."""
    monkeypatch.syspath_prepend(str(ROOT / "cmake"))
    import project_metadata

    metadata = project_metadata.dynamic_metadata({}, {})
    version = (ROOT / "LLAMA_CPP_VERSION").read_text().split()[1]
    assert metadata["optional-dependencies"] == {"llama-cpp-python": [f"llama-cpp-python=={version}"]}
    assert metadata["version"].count(".") == 2
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md"):
        assert version not in (ROOT / name).read_text()


def test_without_a_compiler(tmp_path):
    """The build names what to install, in place of CMake's variables."""
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("no cmake here")
    environment = {name: text for name, text in os.environ.items() if name not in ("CC", "CXX")}
    done = subprocess.run(
        [cmake, "-G", "Unix Makefiles", "-DCMAKE_MAKE_PROGRAM=/bin/true", "-S", ROOT, "-B", tmp_path / "out"],
        env={**environment, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "spac needs a C and a C++ compiler" in done.stderr
