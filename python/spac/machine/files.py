"""Output files: check that they can be written before the work, and write them whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from spac.errors import InputError


def check_writable(path: Path) -> None:
    """Raise InputError, with one line, if a file of this name cannot be written. Its content stays."""
    try:
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise unwritable(path, error) from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a file so that it always has either its old content or `data`.

    A pipe or a device such as /dev/null is written to directly. A link stays, and the file that it points to
    is replaced. Raises InputError, with one line.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: Exception) -> InputError:
    """Return the InputError for a file that cannot be written."""
    return InputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")


def _umask() -> int:
    """Return the umask of this process, which the mode of a new file depends on."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
