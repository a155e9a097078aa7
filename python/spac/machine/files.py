"""Output files: check that they can be written before the work, and write them whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from spac.errors import InputError

_STREAM = re.compile(r"/dev/(stdin|stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")
"""Names of streams that are open already. A regular file behind such a name is not replaced."""


def check_outputs(
    outputs: Mapping[str, Path | str | None], inputs: Iterable[tuple[str, Path | str]] = ()
) -> None:
    """Raise InputError, with one line, unless each output is a file of its own that can be written.

    An output may be neither a model, nor an input, nor another output, whatever links lead to the file. The
    names are those of messages, such as `--state` and `the prompt`. An output that is None is left out.
    """
    taken = {_identity(Path(path)): name for name, path in inputs}
    for name, path in outputs.items():
        if path is None:
            continue
        check_writable(path := Path(path))
        identity = _identity(path)
        if identity is None or _STREAM.fullmatch(str(path)):
            continue
        if other := taken.get(identity, "a model" if _is_model(path) else ""):
            raise InputError(f"{name}: {path} is {other}: name another file")
        taken[identity] = f"the file of {name}"


def _identity(path: Path) -> object:
    """Return what all names of a file share; None for a pipe, a device, or a name that no file can have."""
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return os.path.realpath(path)
    except ValueError:  # a null character in the name
        return None


def _is_model(path: Path) -> bool:
    """Return True for a GGUF file, and so for each part of a split one, a draft and an adapter."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def check_writable(path: Path) -> None:
    """Raise InputError, with one line, if a file of this name cannot be written. Its content stays."""
    try:
        if _is_written_directly(path):
            return
        existed, place = path.exists(), os.path.realpath(path)
        with path.open("ab"):
            pass
        if not existed:
            os.unlink(place)
        elif not os.access(os.path.dirname(place), os.W_OK):
            raise ValueError("its folder allows no new files, and a new one replaces it")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise unwritable(path, error) from None


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write `data` as `replacing` does."""
    with replacing(path, mode) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of the file `path` when the block ends without an exception.

    Until then, `path` has its old content. An existing file keeps its permission bits. A new one gets `mode`,
    or what the umask allows. A link stays, and the file that it points to is replaced. A pipe, a device or a
    stream such as /dev/stdout is written to directly. Raise InputError, with one line.
    """
    try:
        if _is_written_directly(path):
            with path.open("ab") as file:
                yield file
            return
        path = Path(os.path.realpath(path))
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                mode = stat.S_IMODE(path.stat().st_mode)
            os.chmod(name, 0o666 & ~_umask() if mode is None else mode)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError) and _STREAM.fullmatch(str(path)):
            raise  # programs end as at any closed stdout
        raise unwritable(path, error) from None


def unwritable(path: Path | str, error: Exception) -> InputError:
    """Return the InputError for a file that cannot be written."""
    return InputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}")


def unreadable(path: Path | str, error: Exception, what: str = "") -> InputError:
    """Return the InputError for a file that cannot be read; `what` names it, such as "the prompt "."""
    return InputError(f"{path}: {what}cannot be read: {getattr(error, 'strerror', None) or error}")


def _is_written_directly(path: Path) -> bool:
    """Return True for a pipe, a device and a stream, which no other file can replace."""
    return _STREAM.fullmatch(str(path)) is not None or (
        path.exists() and not path.is_file() and not path.is_dir()
    )


def _umask() -> int:
    """Return the umask of this process, which the mode of a new file depends on."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
