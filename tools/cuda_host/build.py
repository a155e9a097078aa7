"""Build the pretend CUDA runtime, and link a CUDA build of spac against it.

A CUDA build's objects are used unchanged (`ninja -t commands` shows how they are linked). Only the shared
library and the module are linked anew, with the pretend runtime in place of cudart, cuBLAS and cuBLASLt.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The driver's name: programs that look for the driver find this loaded library.
NAME = "libcuda.so.1"
# The libraries that the pretend runtime replaces in a link command.
REPLACED = re.compile(r"lib(cudart_static|cublas|cublasLt|culibos|cudart)\.(a|so[.\d]*)$")


class BuildError(Exception):
    """A tool failed, or the folder is no CUDA build. The message says which."""


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:3])} … failed in {folder}:\n{done.stdout}{done.stderr}"[:4000])
    return done.stdout


def include_folders(build: Path) -> list[str]:
    """Return the folders of CUDA's and cuBLAS's headers, as ggml-cuda is compiled with them."""
    try:
        commands = json.loads((build / "compile_commands.json").read_text())
        command = next(entry["command"] for entry in commands if entry["file"].endswith("/ggml-cuda.cu"))
    except (OSError, StopIteration):
        raise BuildError(f"{build} is not the build folder of spac with CUDA (cmake -G Ninja)") from None
    parts = shlex.split(command)
    return [folder for flag, folder in itertools.pairwise(parts) if flag == "-isystem"]


def build_pretend(build: Path, out: Path) -> Path:
    """Compile the pretend runtime with the CUDA headers of `build` into `out`. Return the library."""
    library = out / NAME
    flags = [
        "-std=c++17", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow", "-Werror",
    ]  # fmt: skip
    flags += [f'-DPRETEND_ROOT="{ROOT}"', *(f"-isystem{folder}" for folder in include_folders(build))]
    sources = map(str, sorted((HERE / "pretend").glob("*.cpp")))
    command = [os.environ.get("CXX", "c++"), *flags, "-shared", f"-Wl,-soname,{NAME}", "-o", str(library)]
    run([*command, *sources, "-pthread", "-ldl"], out)
    return library


def link_command(build: Path, target: str, output: Path, library: Path) -> list[str]:
    """Return the command that links `target` in `build`, with another output and the pretend runtime."""
    last = run(["ninja", "-t", "commands", target], build).strip().splitlines()[-1]
    parts = shlex.split(last.removeprefix(": && ").removesuffix(" && :"))
    command = []
    for part in parts:
        if part == target:
            command.append(str(output))
        elif REPLACED.search(part):
            if str(library) not in command:
                command.append(str(library))
        elif not part.startswith("-Wl,-rpath,"):
            command.append(part)
    return [*command, f"-Wl,-rpath,{library.parent}"]


def make_package(build: Path, out: Path) -> Path:
    """Make a folder for PYTHONPATH with spac's Python files and the CUDA build on the pretend runtime."""
    out.mkdir(parents=True, exist_ok=True)
    library = build_pretend(build, out)
    package = out / "python" / "spac"
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "reference")
    shutil.copytree(ROOT / "python" / "spac", package, ignore=ignore, dirs_exist_ok=True)
    references = (build / "spac/lib").glob("reference/libllama.so")  # one with SPAC_BUILD_REFERENCE
    for name in ("spac/lib/libllama.so", *(str(path.relative_to(build)) for path in references)):
        target = out / "python" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        run(link_command(build, name, target, library), build)
    for module in (build / "spac").glob("_core*.so"):
        shutil.copy2(module, package / module.name)
    return package.parent


def package_of(folder: Path, out: Path) -> Path:
    """Return the package in `folder`, if it is an earlier `out`, else one made of that CUDA build in
    `out`."""
    package = folder.resolve() / "python"
    return package if (package / "spac").is_dir() else make_package(folder.resolve(), out.resolve())
