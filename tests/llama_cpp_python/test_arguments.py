"""The typed arguments of `spac.Llama` are those of llama_cpp and of `EngineConfig`, by name and by type."""

from __future__ import annotations

import inspect
import pydoc
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import llama_cpp
import llama_cpp.llama_chat_format
import llama_cpp.llama_speculative
import llama_cpp.llama_tokenizer
import pytest

import spac
from spac.config import EngineConfig
from spac.config.fields import Parsed
from spac.errors import InputError
from spac.llama_cpp_python.arguments import EngineArguments, LlamaCppArguments
from spac.llama_cpp_python.names import OPTIONS
from tests.llama_cpp_python.conftest import TARGET

MODULES = llama_cpp.llama_chat_format, llama_cpp.llama_speculative, llama_cpp.llama_tokenizer
"""The modules of the types that arguments.py imports for type checkers alone."""


def parts(kind: Any) -> Any:
    """Return a type as tuples and sets, which are equal for list[int] and typing.List[int]."""
    inner = [parts(each) for each in get_args(kind)]
    if get_origin(kind) in (Union, types.UnionType):
        return frozenset(inner)
    return (get_origin(kind), *inner) if inner else kind


def or_none(kind: Any) -> Any:
    """Return the parts of the type of what a user gives for a field, where None means the default."""
    given = parts(get_args(kind)[1] if get_origin(kind) is Parsed else kind)
    return frozenset({type(None)} | (given if isinstance(given, frozenset) else {given}))


def parts_of_all(arguments: Any, known: dict[str, Any] | None = None) -> dict[str, Any]:
    return {name: parts(kind) for name, kind in get_type_hints(arguments, localns=known).items()}


def test_llama_cpps_arguments():
    init = llama_cpp.Llama.__init__
    _, _, *names, _ = inspect.signature(init).parameters  # without self, model_path and kwargs
    hints, known = get_type_hints(init), {name: kind for each in MODULES for name, kind in vars(each).items()}
    assert parts_of_all(LlamaCppArguments, known) == {name: or_none(hints[name]) for name in names}


def test_the_engines_arguments():
    hints = get_type_hints(EngineConfig, localns={"Scheduler": spac.scheduler.Scheduler})
    assert parts_of_all(EngineArguments) == {name: or_none(hints[name]) for name in OPTIONS}


def test_the_signature_names_them_all():
    parameters = inspect.signature(spac.Llama).parameters
    assert list(parameters) == ["model_path", *LlamaCppArguments.__annotations__, *OPTIONS]
    assert parameters["n_batch"].default == 512
    assert (parameters["slots"].default, parameters["draft"].default) == ("auto", None)
    shown = pydoc.plain(pydoc.render_doc(spac.Llama))
    for text in ("model_path: 'str'", "n_ctx: 'int' = 512", "slots: 'Slots | ", "draft_length: 'int "):
        assert text in shown


def test_a_slip_of_the_pen_has_one_line():
    with pytest.raises(InputError) as raised:
        spac.Llama(str(TARGET), slot="25%")  # type: ignore[call-arg]
    assert str(raised.value) == "Llama() has no 'slot'; did you mean 'slots'?"
