"""Make libraries that let the linker bind the symbols of an older glibc.

    python old_glibc.py VERSION FOLDER [--cc gcc] [--nm nm]

glibc keeps the old versions of a symbol beside the new one. Each library here has the symbols of one of the
machine's, without code. A symbol has the newest of its versions that the older glibc knows. Symbols that came
later are left out, so a library that needs one cannot be linked.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")

Version = tuple[int, ...]


def number(text: str) -> Version:
    return tuple(map(int, text.split(".")))


def symbols(listing: str, oldest: Version) -> dict[str, tuple[str, Version]]:
    """Return the type and the version that each symbol of `nm -D` has in a glibc of version `oldest`."""
    found: dict[str, tuple[str, Version]] = {}
    for kind, name, text in re.findall(r" ([A-Za-z]) (\w+)@@?GLIBC_([\d.]+)$", listing, re.MULTILINE):
        if (version := number(text)) <= oldest and (name not in found or version > found[name][1]):
            found[name] = ("object" if kind in "BDRV" else "function", version)
    return found


def version_script(found: dict[str, tuple[str, Version]]) -> str:
    """Return the linker's script that gives each symbol its version."""
    names: dict[Version, list[str]] = {}
    for name, (_, version) in sorted(found.items()):
        names.setdefault(version, []).append(name)
    return "".join(
        f"GLIBC_{'.'.join(map(str, version))} {{ {'; '.join(names[version])}; }};\n"
        for version in sorted(names)
    )


def output(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def make(library: str, oldest: Version, folder: Path, cc: str, nm: str) -> None:
    """Write FOLDER/`library`, and the name that the linker's option -l finds it by."""
    path = output(cc, f"-print-file-name={library}")
    found = symbols(output(nm, "-D", "--defined-only", path), oldest)
    if not found:
        raise ValueError(f"{path} has no symbols of glibc {'.'.join(map(str, oldest))} or older")
    source, script = folder / f"{library}.s", folder / f"{library}.map"
    lines = [
        f".globl {name}\n.type {name}, @{kind}\n.size {name}, 8\n{name}:" for name, (kind, _) in found.items()
    ]
    source.write_text("\n".join([*lines, '.section .note.GNU-stack, "", @progbits', ""]))
    script.write_text(version_script(found))
    options = f"-Wl,-soname,{library},--version-script={script}"
    output(cc, "-shared", "-nostdlib", options, source, "-o", folder / library)
    # Beside libc.so.6 belong the functions that every library has a copy of, and those of the loader.
    more = [output(cc, f"-print-file-name={name}") for name in ("libc_nonshared.a", "ld-linux-x86-64.so.2")]
    group = f"{more[0]} AS_NEEDED ( {more[1]} )" if library.startswith("libc.") else ""
    named = folder / f"{library.partition('.')[0]}.so"
    named.write_text(f"GROUP ( {folder.resolve() / library} {group} )\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--nm", default="nm")
    args = parser.parse_args()
    try:
        if not re.fullmatch(r"2\.\d+", args.version):
            raise ValueError("a version of glibc is needed, such as 2.28")
        args.folder.mkdir(parents=True, exist_ok=True)
        for library in LIBRARIES:
            make(library, number(args.version), args.folder, args.cc, args.nm)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} failed: {error.stderr.strip()}")
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
