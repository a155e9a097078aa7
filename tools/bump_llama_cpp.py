"""Try another version of llama-cpp-python, whose sdist has llama.cpp: do the patches apply, what breaks?

    python -m tools.bump_llama_cpp VERSION [--patches FOLDER] [--keep] [--folder FOLDER]

A copy of the tree gets the version and is built in it, with the unpatched library for comparisons. Tests run
there, in an environment with the slim llama-cpp-python of that version, and with the other packages of the
environment that runs this program. A table says what broke. `--patches` names a folder of patches that were
made anew for the version, to take in place of the tree's. The tree itself keeps its pin. With `--keep`,
LLAMA_CPP_VERSION gets the version at the end, whatever broke. This needs the network, and 10 minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spac.errors import one_line
from tools.patches.source import ROOT, llama_source, unified_diff

PIN = "LLAMA_CPP_VERSION"
CHECKS = {
    "package": ("tests/package", "tests/cli/test_upstream_options.py"),
    "patches": ("tests/patches/test_ids_mask.py", "tests/patches/test_upstream.py"),
    "kernels": ("tests/kernels",),
    "reference": ("tests/backend", "tests/llama_cpp_python/test_unmodified.py"),
    "C interface": ("tests/model", "tests/session/test_speculation.py", "tests/session/test_refusals.py"),
    "programs": (
        "tests/llama_cpp_python/test_llama.py",
        "tests/chat/test_format.py",
        "tests/serve/test_openai.py",
    ),
}
"""The tests that have to pass on a version, by the name of their row. They are the suite's quick parts."""
FAULTS = re.compile(r"^.*(?:error:|undefined reference).*$|^CMake Error.*\n(?:(?:  .*)?\n)*", re.MULTILINE)
"""Texts that compilers, linkers and CMake write about a fault."""
MOST_FAULTS = 12
"""The largest number of faults of a step that are printed."""


class BrokenError(Exception):
    """A step failed. Its faults have one line each."""

    def __init__(self, result: str, faults: Sequence[str] = ()) -> None:
        super().__init__(result)
        self.result, self.faults = result, list(faults)


@dataclass
class Trial:
    """A copy of the tree at another version, with its build and its environment, in one folder."""

    version: str
    folder: Path
    ported: Path | None = None  # a folder of patches in place of the tree's
    sdist: Path = Path()
    pin: str = ""  # the text of LLAMA_CPP_VERSION, once there is a source
    partly: Path | None = None  # the source with the hunks that fit, if others do not

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def patches(self) -> list[Path]:
        return sorted((self.tree / "patches").glob("*.patch"))

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    def source(self) -> str:
        """Fetch the sdist into the user's cache, and pin it in a copy of the tree."""
        cache = llama_source.cache_folder(self.folder)
        with tempfile.TemporaryDirectory(dir=cache) as empty:
            self.sdist = cache / f"llama_cpp_python-{self.version}.tar.gz"
            if not self.sdist.is_file():
                os.replace(llama_source.download_sdist(self.version, Path(empty)), self.sdist)
        sha256 = llama_source.sha256_of(self.sdist)
        copy_tree(self.tree)
        if self.ported is not None:
            for patch in self.patches:
                patch.unlink()
            for patch in sorted(self.ported.glob("*.patch")):
                shutil.copy2(patch, self.tree / "patches")
        self.pin = f"version {self.version}\nsha256 {sha256}\n"
        (self.tree / PIN).write_text(self.pin)
        return f"sha256 {sha256}"

    def patch(self) -> str:
        """Apply the patches to the published source; raise BrokenError with the hunks that do not fit.

        The build then takes what fits, to tell whether our C++ compiles.
        """
        pristine, faults = self.folder / "pristine", list[str]()
        llama_source.unpack(llama_source.files_of_sdist(self.sdist), pristine)
        changed: dict[str, str] = {}

        def read(name: str) -> str:
            if name not in changed and not (pristine / name).is_file():
                faults.append(f"{patch.name}: there is no {name}")
                return ""
            return changed[name] if name in changed else (pristine / name).read_text(encoding="utf-8")

        for patch in self.patches:
            text = patch.read_text(encoding="utf-8")
            found = list[str]()
            changed |= unified_diff.apply_patch(text, read, found.append)
            faults += [f"{patch.name}: {fault}" for fault in found]
        if faults:
            self.partly = self.folder / "partly"
            llama_source.mirror(pristine, self.partly, changed)
            for patch in self.patches:
                patch.unlink()
            raise BrokenError(
                f"{len(faults)} hunks do not fit; patches/README.md tells how to make patches anew, and "
                "--patches takes them",
                faults,
            )
        return f"{len(self.patches)} apply"

    def environment(self) -> str:
        """Install the slim llama-cpp-python. The other packages are those of this environment."""
        home = self.python.parents[1]
        self.run([sys.executable, "-m", "venv", "--clear", str(home)], "no environment could be made")
        install = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir"]
        self.run([*install, str(self.sdist)], "pip could not install it", CMAKE_ARGS="-DLLAMA_BUILD=OFF")
        [packages] = home.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return f"slim llama-cpp-python {self.version}"

    def build(self) -> str:
        """Build the libraries and the module; raise BrokenError with the compiler's errors."""
        began, build = time.monotonic(), self.folder / "build"
        options = ["-DSPAC_INPLACE=ON", "-DSPAC_CUDA=off", "-DSPAC_WERROR=ON"]
        options.append(f"-DSPAC_LLAMA_CPP_DIR={self.partly}" if self.partly else "-DSPAC_BUILD_REFERENCE=ON")
        if shutil.which("ccache"):
            options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
        configure = ["cmake", "-G", "Ninja", "-S", str(self.tree), "-B", str(build), *options]
        self.run([*configure, f"-DPython_EXECUTABLE={self.python}"], "CMake could not configure it")
        self.run(["ninja", "-k", "0", "-C", str(build)], "it does not compile")
        seconds = f"{time.monotonic() - began:.0f} s"
        return f"{seconds}, without the hunks that do not fit" if self.partly else seconds

    def test(self, paths: Sequence[str]) -> str:
        """Run tests; raise BrokenError with those that failed."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            done = self.start([*command, f"--junitxml={report}", *paths])
            if not report.is_file():
                raise BrokenError("pytest ended without a report", last_lines(done))
            cases = list(ET.parse(report).iter("testcase"))
        faults = [line for case in cases for line in faults_of(case)]
        skipped = sum(case.find("skipped") is not None for case in cases)
        result = f"{len(cases) - skipped - len(faults)} passed, {skipped} skipped"
        if faults:
            raise BrokenError(f"{result}, {len(faults)} failed", faults)
        return result

    def run(self, command: Sequence[str], failure: str, **environment: str) -> None:
        """Run a command; raise BrokenError if it fails."""
        done = self.start(command, **environment)
        if done.returncode != 0:
            errors = [one_line(fault) for fault in FAULTS.findall(done.stdout + done.stderr)]
            raise BrokenError(failure, list(dict.fromkeys(errors)) or last_lines(done))

    def start(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy of the tree, and return its end."""
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {
            **os.environ, "PATH": tools, "PYTHONPATH": str(self.tree / "python"), **environment,
            "OMP_WAIT_POLICY": "passive", "CCACHE_BASEDIR": str(self.folder), "CCACHE_NOHASHDIR": "1",
        }  # fmt: skip
        env.pop("SPAC_REFERENCE_LIB", None)
        return subprocess.run(command, cwd=self.tree, env=env, capture_output=True, text=True)


def copy_tree(to: Path) -> None:
    """Copy the tree's files, without those that git ignores. Time stamps are kept, for the build."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        raise BrokenError(f"{ROOT} is no checkout of git: {listed.stderr.strip()}")
    shutil.rmtree(to, ignore_errors=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # a file that was deleted and not yet committed is still listed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def faults_of(case: ET.Element) -> Iterator[str]:
    """Yield a line for each failure of a test."""
    for fault in (*case.findall("failure"), *case.findall("error")):
        message = (fault.get("message") or "").strip().splitlines() or ["no message"]
        yield f"{case.get('classname')}::{case.get('name')}: {message[0][:160]}"


def last_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-3:]


def steps(trial: Trial) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each step's name, its result and its faults. What needs a step that failed is left out.

    Without all patches, the build is tried, but its results would be wrong, so no test runs.
    """
    for name in ("source", "patch", "environment", "build"):
        try:
            yield name, getattr(trial, name)(), []
        except BrokenError as broken:
            yield name, broken.result, broken.faults or [broken.result]
            if trial.partly is None or name != "patch":
                return
    if trial.partly is not None:
        return
    for name, paths in CHECKS.items():
        try:
            yield f"tests: {name}", trial.test(paths), []
        except BrokenError as broken:
            yield f"tests: {name}", broken.result, broken.faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Try a version and print what broke. Return the exit code: 1 if something did, 2 without a source."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bump_llama_cpp", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("version", help="a published version of llama-cpp-python")
    parser.add_argument("--keep", action="store_true", help=f"leave the version in {PIN}")
    parser.add_argument("--patches", type=Path, metavar="FOLDER", help="patches in place of the tree's")
    parser.add_argument("--folder", type=Path, help="where all is made (default: build/bump-VERSION)")
    given = parser.parse_args(arguments)
    if not re.fullmatch(r"[\w.+!-]+", given.version):
        parser.error(f"{given.version!r} is no version")
    if given.patches is not None and not list(given.patches.glob("*.patch")):
        parser.error(f"--patches {given.patches}: there is no .patch file in it")
    folder = (given.folder or ROOT / "build" / f"bump-{given.version}").resolve()
    trial, n_broken = Trial(given.version, folder, given.patches), 0
    before = llama_source.read_pin(ROOT / PIN)[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        print(f"llama-cpp-python {given.version} in place of {before}")
        for name, result, faults in steps(trial):
            print(f"{name:20} {result}", flush=True)
            for fault in faults[:MOST_FAULTS]:
                print(f"    {fault}")
            if len(faults) > MOST_FAULTS:
                print(f"    and {len(faults) - MOST_FAULTS} more")
            n_broken += bool(faults)
    except (llama_source.SourceError, OSError) as fault:
        print(f"{parser.prog}: {fault}", file=sys.stderr)
        return 2
    if keeps := given.keep and bool(trial.pin):
        (ROOT / PIN).write_text(trial.pin)
    print(f"{PIN} says {given.version if keeps else before}; the trial is in {folder}")
    return int(n_broken > 0)


if __name__ == "__main__":
    sys.exit(main())
