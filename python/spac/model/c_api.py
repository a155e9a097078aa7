"""Models and contexts of llama.cpp. Python owns them, and calls the library through `spac._core`.

Every object frees what it owns once, in `close()`. A context must be closed before its model.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spac import _core, _library
from spac.errors import InputError, OutOfMemoryError, SpacError
from spac.machine.arrays import Int32Array
from spac.machine.device_memory import shortage

TokenArray = Int32Array
Progress = Callable[[float], bool]
"""A callback that gets the loaded share, 0 to 1, while a model loads. It returns False to stop loading."""

log = logging.getLogger("spac.llama")
log.addHandler(logging.NullHandler())

MTP = _core.CONTEXT_TYPE_MTP
"""The type of a context that drafts with a model's extra (multi-token prediction) layers."""

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_recent_errors: deque[str] = deque(maxlen=8)
_notices: deque[str] = deque(maxlen=32)
_echo: Callable[[int, bytes, object], object] | None = None
_AGAIN_S = 0.01
"""Seconds until a Ctrl-C that a callback held back is raised again."""
_OURS = "spac: "
"""The beginning of log lines from spac's part of the library."""


def _on_log(level: int, text: bytes) -> None:
    """Pass a line of the library's log on.

    An exception must not leave a callback, so a Ctrl-C in here is held back and raised again later.
    """
    try:
        _note(level, text)
    except KeyboardInterrupt:
        threading.Timer(_AGAIN_S, _thread.interrupt_main).start()


def _note(level: int, text: bytes) -> None:
    """Write a line of llama.cpp's log to the logger `spac.llama`.

    Errors are kept for the message of the next failure. spac's own warnings are kept for `take_notices`.
    """
    if _echo is not None:
        _echo(level, text, None)
    line = text.decode("utf-8", "replace").rstrip("\n")
    if not line.strip(" ."):
        return
    if level == 4:
        _recent_errors.append(line.strip())
    elif level == 3 and line.startswith(_OURS):
        _notices.append(line.removeprefix(_OURS).strip())
    log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


def listen() -> None:
    """Take the library's log, which `llama_cpp` or a test may have taken in the meantime."""
    _core.log_to(_on_log)


listen()
_library.after_llama_cpp.append(listen)


def echo_log(echo: Callable[[int, bytes, object], object] | None) -> None:
    """Call `echo` with the level and text of every further log line, beside the logger. None ends this."""
    global _echo
    _echo = echo


def last_error() -> str:
    """Return the library's first error line since the last call, as a clause for a message; "" for none."""
    # The first line names the cause. Later ones only report that an operation failed.
    cause = (
        _recent_errors[0].split(": ", 1)[-1].removeprefix("error loading model: ") if _recent_errors else ""
    )
    _recent_errors.clear()
    _core.take_memory_refusal()
    return cause


def take_notices() -> list[str]:
    """Return the warnings of spac's part of the library since the last call, one line each."""
    notices = []
    while _notices:  # any thread of the library may add one meanwhile
        notices.append(_notices.popleft())
    return notices


def refusal(what: str) -> SpacError:
    """Return the error for a refusal of the library. Its log tells if memory was lacking."""
    if short := _core.take_memory_refusal():
        return OutOfMemoryError(f"{what}: {shortage(*short)}")
    cause = last_error() or "no reason given"
    kind = OutOfMemoryError if "alloc" in cause.lower() or "memory" in cause.lower() else InputError
    return kind(f"{what}: {cause}")


class _Owned:
    """A pointer of the library. It is freed once, and its later use raises InputError instead of a crash.

    A child process after a fork cannot use the pointer and does not free it, because it lacks the library's
    threads.
    """

    _free: Callable[[int], object]
    _pointer: int | None = None

    def __init__(self) -> None:
        self._home = os.getpid()

    @property
    def pointer(self) -> int:
        """The pointer's address. Raises InputError if it is closed, or was made before a fork."""
        name = type(self).__name__.lower()
        if not self._pointer:
            raise InputError(f"the {name} is closed")
        if self._home != os.getpid():
            raise InputError(
                f"the {name} was made in another process, before a fork: load the model anew in this one"
            )
        return self._pointer

    def close(self) -> None:
        """Free the pointer. Calling it again does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer and self._home == os.getpid():
            self._free(pointer)


class Model(_Owned):
    """A loaded GGUF. Raises SpacError with the library's own reason if it cannot be loaded."""

    _free = staticmethod(_core.free_model)
    path: Path
    adapters: list[tuple[int, float]]
    """Pointers of LoRA adapters, with their scales. They are freed with the model."""

    def __init__(
        self, path: Path, devices: Sequence[int], params: Mapping[str, Any], progress: Progress | None = None
    ) -> None:
        super().__init__()
        self.path = path
        self.adapters = []
        last_error()
        self._pointer = _core.load_model(os.fsencode(path), devices, dict(params), progress)
        if not self._pointer:
            raise refusal(f"{path}: llama.cpp could not load the model")

    @property
    def has_window(self) -> bool:
        """True if some layers see a window of the past and no more."""
        return _core.model_has_window(self.pointer)

    @property
    def n_layer(self) -> int:
        """The number of layers, with the extra layers that predict further tokens."""
        return _core.model_layers(self.pointer) + _core.model_extra_layers(self.pointer)

    @property
    def n_bytes(self) -> int:
        """The size of the weights in bytes."""
        return _core.model_bytes(self.pointer)

    @property
    def description(self) -> str:
        """llama.cpp's short description of the model."""
        return _core.model_description(self.pointer)

    @property
    def has_mtp(self) -> bool:
        """True if the file has extra layers that predict further tokens."""
        return _core.model_extra_layers(self.pointer) > 0

    @property
    def is_recurrent(self) -> bool:
        """True if layers keep a state in place of the past, so the model cannot go back to any token."""
        return _core.model_is_recurrent(self.pointer)

    @property
    def has_encoder(self) -> bool:
        """True if the model has an encoder."""
        return _core.model_has_encoder(self.pointer)

    def tokenize(self, text: str, *, special: bool = True) -> TokenArray:
        """Return the int32 tokens of `text`, with the model's beginning token if it adds one.

        `special` makes control tokens of their text.
        """
        data = text.encode("utf-8", "surrogateescape")  # arguments may hold bytes that are not UTF-8
        return _core.tokenize(self.pointer, data, special)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token. Those of a control token are empty unless `special`."""
        return _core.token_piece(_core.model_vocabulary(self.pointer), token, special)

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the vocabulary."""
        return _core.n_model_tokens(self.pointer)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that turns messages into a prompt; None if the file has none."""
        return _core.chat_template(self.pointer).decode("utf-8", "replace") or None

    @property
    def begin_text(self) -> str:
        """The beginning token as text; "" if the model has none."""
        token = _core.begin_token(self.pointer)
        return _core.token_text(self.pointer, token).decode("utf-8", "replace") if token >= 0 else ""

    @property
    def adds_begin(self) -> bool:
        """True if `tokenize` puts the beginning token in front."""
        return _core.adds_begin(self.pointer)

    def is_end(self, token: int) -> bool:
        """Return True if the token ends a generation."""
        return _core.is_end(self.pointer, token)


class Context(_Owned):
    """A context of a model. Raises SpacError if it cannot be made."""

    _free = staticmethod(_core.free_context)

    def __init__(self, model: Model, params: Mapping[str, Any]) -> None:
        super().__init__()
        last_error()
        self._pointer = _core.new_context(model.pointer, dict(params))
        if not self._pointer:
            what = f"a context of {params['n_ctx']} tokens" if "n_ctx" in params else "a context"
            raise refusal(f"{model.path}: llama.cpp could not make {what}")

    @property
    def size(self) -> int:
        """The number of tokens that fit into the context."""
        return _core.context_size(self.pointer)

    @property
    def threads(self) -> int:
        """The number of CPU threads of a graph: the larger one of those for a prompt and for a token."""
        return _core.context_threads(self.pointer)

    @property
    def graph_tokens(self) -> int:
        """The largest number of tokens of one graph."""
        return _core.graph_tokens(self.pointer)

    @property
    def batch_tokens(self) -> int:
        """The largest number of tokens of one batch."""
        return _core.batch_tokens(self.pointer)
