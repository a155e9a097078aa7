"""Patches are applied strictly. A patch that does not fit fails the configuration and is named."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "one\ntwo\nthree\nfour\nfive\n"
PATCH = "why: because\n--- a/src/a.c\n+++ b/src/a.c\n@@ -2,3 +2,3 @@\n two\n-three\n+3\n four\n"


@pytest.fixture
def unified_diff(llama_source):
    import unified_diff

    return unified_diff


@pytest.fixture
def tree(tmp_path):
    """Write a source tree of one file, a folder for patches, and the pin."""
    for name, content in (
        ("local/ggml/CMakeLists.txt", ""),
        ("local/src/a.c", SOURCE),
        ("patches/README.md", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    shutil.copy(ROOT / "LLAMA_CPP_VERSION", tmp_path)
    return tmp_path


def provide(llama_source, tree):
    return llama_source.provide(tree / "LLAMA_CPP_VERSION", tree / "patches", tree / "build", tree / "local")


def test_the_trees_follow_the_patches(llama_source, tree):
    pristine, patched = tree / "build/pristine/src/a.c", tree / "build/patched/src/a.c"
    assert provide(llama_source, tree) == []
    assert patched.read_text() == SOURCE
    (tree / "patches/0001-three.patch").write_text(PATCH)
    second = PATCH.replace("three", "3").replace("+3\n", "+drei\n").replace("@@ -2,3", "@@ -1,3")
    (tree / "patches/0002-moved.patch").write_text(second)
    assert provide(llama_source, tree) == ["src/a.c"]
    assert patched.read_text() == SOURCE.replace("three", "drei")
    assert pristine.read_text() == SOURCE
    os.utime(patched, (1, 1))
    provide(llama_source, tree)
    assert patched.stat().st_mtime == 1, "an unchanged file was written again"
    (tree / "patches/0001-three.patch").unlink()
    (tree / "patches/0002-moved.patch").unlink()
    assert provide(llama_source, tree) == []
    assert patched.read_text() == SOURCE


def test_files_that_the_source_drops_go(llama_source, tree):
    (tree / "local/src/b.c").write_text("")
    provide(llama_source, tree)
    (tree / "local/src/b.c").unlink()
    provide(llama_source, tree)
    assert not (tree / "build/pristine/src/b.c").exists()
    assert not (tree / "build/patched/src/b.c").exists()


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (PATCH.replace(" two", " 2"), "fits nowhere"),
        (PATCH.replace(" four\n", ""), "cut off"),
        (PATCH + "+five\n", "longer than its header"),
        (PATCH.replace("a.c", "none.c"), "none.c"),
        ("nothing\n", "no unified diff"),
        (PATCH.replace("+++ b/src/a.c", "+++ /dev/null"), "deletes"),
        ("--- a/src/a.c\n+++ b/src/a.c\n@@ -2,0 +3,1 @@\n+new\n", "no context"),
    ],
)
def test_a_patch_that_does_not_fit_is_named(llama_source, tree, patch, reason):
    (tree / "patches/0007-broken.patch").write_text(patch)
    with pytest.raises(
        llama_source.SourceError, match=rf"patches/0007-broken.patch does not apply: .*{reason}.*README"
    ):
        provide(llama_source, tree)


def test_a_hunk_that_fits_two_places_is_refused(unified_diff):
    with pytest.raises(unified_diff.PatchError, match="fits 2 places"):
        unified_diff.apply_patch(PATCH, lambda name: "zero\n" + SOURCE + SOURCE)


def test_a_patch_that_git_signed(unified_diff):
    signed = PATCH + "-- \n2.43.0\n"
    assert unified_diff.apply_patch(signed, lambda name: SOURCE) == unified_diff.apply_patch(
        PATCH, lambda name: SOURCE
    )


def test_new_files_and_several_hunks(unified_diff):
    lines = [str(i) for i in range(30)]
    patch = "--- a/f\n+++ b/f\n@@ -2,2 +2,3 @@\n 1\n+new\n 2\n@@ -21,2 +22,1 @@\n 20\n-21\n"
    patch += "--- /dev/null\n+++ b/g\n@@ -0,0 +1,2 @@\n+x\n+y\n"
    result = unified_diff.apply_patch(patch, lambda name: "\n".join(lines) + "\n")
    expected = [*lines[:2], "new", *lines[2:21], *lines[22:]]
    assert result == {"f": "\n".join(expected) + "\n", "g": "x\ny\n"}


def test_our_patches_keep_to_the_limit():
    """There are at most 6 patches, of 250 lines together. They hold call sites and checks, never features."""
    patches = sorted((ROOT / "patches").glob("*.patch"))
    changed = [
        line
        for patch in patches
        for line in patch.read_text().splitlines()
        if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))
    ]
    assert len(patches) <= 6
    assert len(changed) <= 250
    readme = (ROOT / "patches" / "README.md").read_text()
    assert not [patch.name for patch in patches if patch.name not in readme]


def test_a_broken_patch_fails_the_configuration(tree):
    cmake = shutil.which(
        "cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if cmake is None:
        pytest.skip("no cmake here")
    shutil.copytree(ROOT / "cmake", tree / "cmake", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "python/spac").mkdir(parents=True)
    shutil.copy(ROOT / "python/spac/__init__.py", tree / "python/spac")
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    (tree / "patches/0007-broken.patch").write_text(PATCH.replace(" two", " 2"))
    done = subprocess.run(
        [cmake, "-S", tree, "-B", tree / "out", f"-DSPAC_LLAMA_CPP_DIR={tree / 'local'}",
         f"-DPython_EXECUTABLE={sys.executable}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    message = " ".join(done.stderr.split())
    assert "patches/0007-broken.patch does not apply" in message
    assert "patches/README.md" in message


# The build gets llama.cpp's source through a cache and checks its hash. Errors tell why it cannot be had.


ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"an sdist"


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
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("no cmake here")
    environment = {name: text for name, text in os.environ.items() if name not in ("CC", "CXX")}
    done = subprocess.run(
        [cmake, "-G", "Unix Makefiles", "-DCMAKE_MAKE_PROGRAM=/bin/true", "-S", ROOT, "-B", tmp_path / "out"],
        env={**environment, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "spac needs a C and a C++ compiler" in done.stderr
