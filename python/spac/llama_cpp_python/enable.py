"""`enable()` gives spac's engine to the `llama_cpp.Llama(...)` of apps that do not know spac.

Example:
    import spac

    spac.enable(draft="draft.gguf", slots="25%")
    import the_app
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from spac import _library
from spac.config import EngineConfig
from spac.errors import InputError
from spac.llama_cpp_python.names import OPTIONS
from spac.model.gguf.check import check_model

if TYPE_CHECKING:
    from spac.llama_cpp_python.arguments import EngineArguments

_options: dict[str, Any] | None = None
_kinds: dict[Any, Any] = {}

# `spac exec` calls `enable` when an import of llama_cpp ends. A module of spac may have begun that import. So
# functions import what needs llama_cpp.


def enable(**options: Unpack[EngineArguments]) -> None:
    """Make `llama_cpp.Llama(...)` create a `spac.Llama` from now on, for models that have experts.

    The app may have imported the class already, and may derive from it. `options` are those of `spac.Llama`
    beside llama_cpp's own. They apply to models whose call does not give them. A second call of `enable`
    replaces the options of the first. Models without experts, and models made before, stay plain llama.cpp's.

    Raise InputError for unknown options and for values out of range. Raise ImportError when llama_cpp is
    missing or already runs on another library. Each error has one line.
    """
    _library.load()
    import llama_cpp

    global _options
    for name in options:
        if name not in OPTIONS:
            raise InputError(f"enable() has no '{name}'; it knows: {', '.join(OPTIONS)}")
    config = EngineConfig.from_mapping({**options, "target": "any"})  # Raise errors now, not with a model.
    _options = {name: getattr(config, name) for name in options}
    _, llama_cpp.Llama.__init__ = _inits()


def disable() -> None:
    """Undo `enable()`; models that were made meanwhile do not change."""
    import llama_cpp

    global _options
    _options = None
    llama_cpp.Llama.__init__, _ = _inits()


@functools.cache
def _inits() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the `__init__` of llama_cpp's class, and the one that replaces it."""
    import llama_cpp

    plain_init = llama_cpp.Llama.__init__

    @functools.wraps(plain_init)
    def init(self: llama_cpp.Llama, *args: Any, **keywords: Any) -> None:
        from spac.llama_cpp_python.llama import Llama

        if _options is None or isinstance(self, Llama) or not _has_experts(*args, **keywords):
            plain_init(self, *args, **keywords)
            return
        self.__class__ = _split(type(self))
        given = {name: value for name, value in keywords.items() if value is not None}
        Llama.__init__(self, *args, **{**_options, **given})

    return plain_init, init


def _has_experts(model_path: str, *, vocab_only: bool = False, **_keywords: Any) -> bool:
    if vocab_only:
        return False
    try:
        return check_model(model_path).is_moe
    except InputError:
        return False  # llama_cpp reports the error.


def _split(kind: Any) -> Any:
    """Return spac's `Llama` for llama_cpp's own; for an app's class, a class that derives from both."""
    import llama_cpp

    from spac.llama_cpp_python.llama import Llama

    if kind is llama_cpp.Llama:
        return Llama
    if kind not in _kinds:
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _kinds[kind] = type(kind.__name__, (kind, Llama), names)
    return _kinds[kind]
