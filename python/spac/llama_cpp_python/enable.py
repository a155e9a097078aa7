"""The split for apps that know nothing of it: `enable()`, and their `llama_cpp.Llama(...)` gets it.

Example:
    import spac

    spac.enable(draft="draft.gguf", slots="25%")
    import the_app
"""

from __future__ import annotations

import functools
from typing import Any

import llama_cpp

from spac.config import EngineConfig
from spac.errors import InputError
from spac.llama_cpp_python.keywords import OPTIONS
from spac.llama_cpp_python.llama import Llama
from spac.model.gguf.check import check_model

_options: dict[str, Any] | None = None
_kinds: dict[Any, Any] = {}
_plain_init = llama_cpp.Llama.__init__


def enable(**options: Any) -> None:
    """From now on, `llama_cpp.Llama(...)` makes a `spac.Llama` when the model has experts.

    It does not matter whether the app has imported the class already, or derives from it. `options` are those
    of `spac.Llama` beside llama_cpp's own, for models whose maker does not give them; a second call replaces
    those of the first. Models without experts, and those made before, remain plain llama.cpp's.

    Raises InputError for unknown options and values out of range, ImportError when llama_cpp is missing or
    already runs on another library; each with one line.
    """
    global _options
    for name in options:
        if name not in OPTIONS:
            raise InputError(f"enable() has no '{name}'; it knows: {', '.join(OPTIONS)}")
    EngineConfig.from_mapping({**options, "target": "any"})  # refused now rather than when a model is made
    _options = dict(options)
    llama_cpp.Llama.__init__ = _init


def disable() -> None:
    """Undo `enable()`. Models that were made meanwhile stay what they are."""
    global _options
    _options = None
    llama_cpp.Llama.__init__ = _plain_init


@functools.wraps(_plain_init)
def _init(self: llama_cpp.Llama, *args: Any, **keywords: Any) -> None:
    if _options is None or isinstance(self, Llama) or not _has_experts(*args, **keywords):
        _plain_init(self, *args, **keywords)
        return
    self.__class__ = _split(type(self))
    Llama.__init__(self, *args, **{**_options, **keywords})


def _has_experts(model_path: str, *, vocab_only: bool = False, **_keywords: Any) -> bool:
    if vocab_only:
        return False
    try:
        return check_model(model_path).is_moe
    except InputError:
        return False  # llama_cpp says what is wrong


def _split(kind: Any) -> Any:
    """`kind`, an app's own class perhaps, on top of spac's."""
    if kind is llama_cpp.Llama:
        return Llama
    if kind not in _kinds:
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _kinds[kind] = type(kind.__name__, (kind, Llama), names)
    return _kinds[kind]
