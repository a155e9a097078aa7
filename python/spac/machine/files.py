"""Files by name: inputs are plain files, outputs are checked early and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from spac.errors import InputError

_STREAM = re.compile(r"/dev/(stdin|stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")
"""Names of streams that are open already. A regular file behind such a name is not replaced."""

MOST_READ = 1 << 30
"""The most bytes of a file that is read whole."""


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
    stream such as /dev/stdout is written to directly. A pipe needs a reader. Raise InputError, with one line.
    """
    try:
        if _is_written_directly(path):
            waits = _STREAM.fullmatch(str(path)) is not None
            with open(path, "ab", opener=None if waits else _opened_at_once) as file:
                os.set_blocking(file.fileno(), True)
                yield file
            return
        path = Path(os.path.realpath(path))
        descriptor, name = tempfile.mkstemp(prefix=".spac-", dir=path.parent)
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


@contextlib.contextmanager
def plain(path: Path | str) -> Iterator[BinaryIO]:
    """Yield a plain file that is open for reading, or a stream that is open already, such as /dev/stdin.

    Raise OSError for any other pipe or device, which might keep the reader for ever. Raise ValueError for a
    name that no file can have.
    """
    is_stream = _STREAM.fullmatch(str(path)) is not None
    with open(path, "rb", opener=None if is_stream else _opened_at_once) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (is_stream or stat.S_ISREG(mode) or os.path.samefile(path, os.devnull)):
            raise OSError(errno.EINVAL, "it is no plain file")
        yield file


def read_plain(path: Path | str) -> bytes:
    """Return the content of a file as `plain` opens it. Raise OSError for more than MOST_READ bytes too."""
    data = bytearray()
    with plain(path) as file:
        while part := file.read(1 << 20):
            data += part
            if len(data) > MOST_READ:
                raise OSError(errno.EFBIG, f"it has more than {MOST_READ >> 20} MB")
    return bytes(data)


def check_unpacked(archive: zipfile.ZipFile) -> None:
    """Raise ValueError if the members of an archive have more than MOST_READ bytes together."""
    n_bytes = sum(member.file_size for member in archive.infolist())
    if n_bytes > MOST_READ:
        raise ValueError(f"its parts have {n_bytes >> 20} MB, and {MOST_READ >> 20} MB are the most")


def _opened_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


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
