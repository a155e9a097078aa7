"""Models and contexts of llama.cpp. Python owns them through llama-cpp-python's ctypes functions.

Every object frees what it owns once, in `close()`. A context must be closed before its model.
"""

from __future__ import annotations

import _thread
import ctypes
import logging
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np

from spac import _core
from spac.errors import InputError, OutOfMemoryError, SpacError
from spac.machine.arrays import Int32Array
from spac.machine.device_memory import shortage

TokenArray = Int32Array
Progress = Callable[[float], bool]
"""A callback that gets the loaded share, 0 to 1, while a model loads. It returns False to stop loading."""

log = logging.getLogger("spac.llama")
log.addHandler(logging.NullHandler())

MTP = int(api.LLAMA_CONTEXT_TYPE_MTP)
"""The type of a context that drafts with a model's extra (multi-token prediction) layers."""

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_recent_errors: deque[str] = deque(maxlen=8)
_notices: deque[str] = deque(maxlen=32)
_echo: Callable[[int, bytes, object], object] | None = None
_AGAIN_S = 0.01
"""Seconds until a Ctrl-C that a callback held back is raised again."""
_OURS = "spac: "
"""The beginning of log lines from spac's part of the library."""


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user_data: object) -> None:
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


# The callback is a module global, because the library may log until the process ends.
api.llama_log_set(_on_log, ctypes.c_void_p(0))
api.llama_backend_init()


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


@contextmanager
def grammar_faults() -> Iterator[None]:
    """Complete an InputError by the fault of a grammar, which llama.cpp writes to stderr with the grammar."""
    try:
        stderr = os.dup(2)
    except OSError:  # It is closed.
        yield
        return
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        except InputError as error:
            written.seek(0)
            match = re.search(rb"error parsing grammar: (.+)", written.read())
            cause = f": {match[1].decode('utf-8', 'replace')}" if match else ""
            raise InputError(f"{error}{cause}") from None
        else:
            written.seek(0)
            os.write(stderr, written.read())  # Another thread may have written it.
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


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


def apply(params: ctypes.Structure, values: Mapping[str, Any]) -> None:
    """Set fields of a structure of parameters. Raises InputError for an unknown name."""
    known = [name for name, *_ in params._fields_]
    for name, value in values.items():
        if name not in known:
            raise InputError(f"{type(params).__name__} has no '{name}'; it knows: {', '.join(known)}")
        setattr(params, name, value)


def token_piece(vocab: Any, token: int, special: bool) -> bytes:
    """Return the bytes of a token of a llama_vocab. Those of a control token are empty unless `special`."""
    room = 64
    while True:
        buffer = ctypes.create_string_buffer(room)
        count = api.llama_token_to_piece(vocab, token, buffer, room, 0, special)
        if count >= 0:
            return buffer.raw[:count]
        room = -count


class _Report:
    """The progress callback of loading.

    An exception (Ctrl-C) cannot pass through the library, so it is kept in `error`, and loading stops.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.error: BaseException | None = None

    def __call__(self, done: float, _user_data: object) -> bool:
        try:
            return self._progress is None or self._progress(done)
        except BaseException as error:
            self.error = error
            return False


class _Owned:
    """A pointer of the library. It is freed once, and its later use raises InputError instead of a crash.

    A child process after a fork cannot use the pointer and does not free it, because it lacks the library's
    threads.
    """

    _pointer: Any = None

    def __init__(self) -> None:
        self._home = os.getpid()

    @property
    def pointer(self) -> Any:
        """The pointer. Raises InputError if it is closed, or was made before a fork."""
        name = type(self).__name__.lower()
        if not self._pointer:
            raise InputError(f"the {name} is closed")
        if self._home != os.getpid():
            raise InputError(
                f"the {name} was made in another process, before a fork: load the model anew in this one"
            )
        return self._pointer

    @property
    def address(self) -> int:
        """The pointer as an integer, for `spac._core`."""
        return int(ctypes.cast(self.pointer, ctypes.c_void_p).value or 0)

    def close(self) -> None:
        """Free the pointer. Calling it again does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer and self._home == os.getpid():
            self._free(pointer)

    def _free(self, pointer: Any) -> None:
        raise NotImplementedError


class Model(_Owned):
    """A loaded GGUF. Raises SpacError with the library's own reason if it cannot be loaded."""

    path: Path
    adapters: list[tuple[Any, float]]
    """Pointers of LoRA adapters, with their scales. They are freed with the model."""

    def __init__(
        self,
        path: Path,
        devices: Sequence[int],
        params: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.adapters = []
        values = api.llama_model_default_params()
        handles = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        values.devices = ctypes.cast(handles, ctypes.c_void_p).value
        values.n_gpu_layers = -1 if devices else 0
        report = _Report(progress)
        values.progress_callback = callback = api.llama_progress_callback(report)
        apply(values, params)
        last_error()
        with _core.AbortGuard():
            self._pointer = api.llama_model_load_from_file(os.fsencode(path), values)
        del callback
        if report.error is not None:
            self.close()
            raise report.error
        if not self._pointer:
            raise refusal(f"{path}: llama.cpp could not load the model")

    def _free(self, pointer: Any) -> None:
        api.llama_model_free(pointer)

    @property
    def _vocab(self) -> Any:
        return api.llama_model_get_vocab(self.pointer)

    @property
    def trained_context(self) -> int:
        """The length in tokens of the context that the model was trained with."""
        return int(api.llama_model_n_ctx_train(self.pointer))

    @property
    def n_layer(self) -> int:
        """The number of layers, with the extra layers that predict further tokens."""
        pointer = self.pointer
        return int(api.llama_model_n_layer(pointer)) + int(api.llama_model_n_layer_nextn(pointer))

    @property
    def n_bytes(self) -> int:
        """The size of the weights in bytes."""
        return int(api.llama_model_size(self.pointer))

    @property
    def description(self) -> str:
        """llama.cpp's short description of the model."""
        buffer = ctypes.create_string_buffer(256)
        api.llama_model_desc(self.pointer, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def has_mtp(self) -> bool:
        """True if the file has extra layers that predict further tokens."""
        return int(api.llama_model_n_layer_nextn(self.pointer)) > 0

    @property
    def has_encoder(self) -> bool:
        """True if the model has an encoder."""
        return bool(api.llama_model_has_encoder(self.pointer))

    def tokenize(self, text: str, *, special: bool = True) -> TokenArray:
        """Return the int32 tokens of `text`, with the model's beginning token if it adds one.

        `special` makes control tokens of their text.
        """
        data = text.encode("utf-8", "surrogateescape")  # arguments may hold bytes that are not UTF-8
        room = len(data) + 8
        for _ in range(2):
            tokens = (api.llama_token * room)()
            count = api.llama_tokenize(self._vocab, data, len(data), tokens, room, True, special)
            if count >= 0:
                return np.array(tokens[:count], dtype=np.int32)
            room = -count
        raise SpacError("llama.cpp could not tokenize the prompt")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token. Those of a control token are empty unless `special`."""
        return token_piece(self._vocab, token, special)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that turns messages into a prompt; None if the file has none."""
        text = api.llama_model_chat_template(self.pointer, None)
        return text.decode("utf-8", "replace") if text else None

    @property
    def begin_text(self) -> str:
        """The beginning token as text; "" if the model has none."""
        return self._text(int(api.llama_vocab_bos(self._vocab)))

    @property
    def adds_begin(self) -> bool:
        """True if `tokenize` puts the beginning token in front."""
        return bool(api.llama_vocab_get_add_bos(self._vocab))

    def _text(self, token: int) -> str:
        text = api.llama_vocab_get_text(self._vocab, token) if token >= 0 else None
        return text.decode("utf-8", "replace") if text else ""

    def is_end(self, token: int) -> bool:
        """Return True if the token ends a generation."""
        return bool(api.llama_vocab_is_eog(self._vocab, token))


class Context(_Owned):
    """A context of a model. Raises SpacError if it cannot be made."""

    def __init__(self, model: Model, params: Mapping[str, Any]) -> None:
        super().__init__()
        values = api.llama_context_default_params()
        apply(values, params)
        last_error()
        with _core.AbortGuard():
            self._pointer = api.llama_init_from_model(model.pointer, values)
        if not self._pointer:
            raise refusal(f"{model.path}: llama.cpp could not make a context of {values.n_ctx} tokens")

    def _free(self, pointer: Any) -> None:
        api.llama_free(pointer)

    @property
    def size(self) -> int:
        """The number of tokens that fit into the context."""
        return int(api.llama_n_ctx(self.pointer))

    @property
    def threads(self) -> int:
        """The number of CPU threads of a graph: the larger one of those for a prompt and for a token."""
        return int(max(api.llama_n_threads(self.pointer), api.llama_n_threads_batch(self.pointer)))

    @property
    def graph_tokens(self) -> int:
        """The largest number of tokens of one graph."""
        return int(api.llama_n_ubatch(self.pointer))
