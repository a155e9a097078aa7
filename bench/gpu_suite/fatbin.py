"""Remove from CUDA objects what one GPU does not need: their intermediate code (PTX), half of their size.

A fat binary is a header (magic, version, header size u16, size u64) and entries (kind u16, version u16,
header size u32, size u64, then the header's rest and the content, compressed or not). Kind 1 is PTX, 2
machine code.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

SECTION = ".nv_fatbin"
_MAGIC = 0xBA55ED50
_HEADER, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
_MACHINE_CODE = 2


def machine_code_only(section: bytes) -> bytes:
    """Return the section's fat binaries without their PTX. Raise ValueError for bytes that are no fat binary,
    and for one without machine code."""
    result, at = b"", 0
    while at < len(section):
        if not any(section[at : at + 8]):  # padding between binaries
            result, at = result + section[at : at + 8], at + 8
            continue
        magic, version, n_header, size = _HEADER.unpack_from(section, at)
        if magic != _MAGIC or at + n_header + size > len(section):
            raise ValueError(f"no fat binary at offset {at}")
        kept, entry, end = b"", at + n_header, at + n_header + size
        while entry < end:
            kind, _, n_entry, n_content = _ENTRY.unpack_from(section, entry)
            if kind == _MACHINE_CODE:
                kept += section[entry : entry + n_entry + n_content]
            entry += n_entry + n_content
        if not kept or entry != end:
            raise ValueError(f"the fat binary at offset {at} has no machine code, or another form")
        header = _HEADER.pack(magic, version, n_header, len(kept))
        result += header + section[at + len(header) : at + n_header] + kept
        at = end
    return result


def prune(source: Path, target: Path) -> None:
    """Write a copy of an object without PTX and without debugging symbols. Needs binutils."""
    raw, slim = target.with_suffix(".fatbin"), target.with_suffix(".slim")
    words = [
        "objcopy",
        "-O",
        "binary",
        f"--only-section={SECTION}",
        "--set-section-flags",
        f"{SECTION}=alloc",
    ]
    subprocess.run([*words, source, raw], check=True)
    words = ["objcopy", "--strip-debug"]
    if raw.stat().st_size:
        slim.write_bytes(machine_code_only(raw.read_bytes()))
        words += ["--update-section", f"{SECTION}={slim}"]
    subprocess.run([*words, source, target], check=True)
    for path in (raw, slim):
        path.unlink(missing_ok=True)
