"""Files that a run leaves behind: found to be writable before the work, and never half written after it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from spac.errors import InputError


def check_writable(path: Path) -> None:
    """Raises InputError, one line, when a file of this name cannot be written. What is in it stays."""
    try:
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise unwritable(path, error) from None


def write_atomically(path: Path, data: bytes) -> None:
    """The file has either its old content or `data`, whatever happens. Raises InputError, one line.

    What is no file (a pipe, /dev/null) is written to; the file behind a link is replaced, not the link.
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
    """What is said of a file that cannot be written."""
    return InputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")


def _umask() -> int:
    """The process's: what a new file of a user's would get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
