"""The stub _core.pyi agrees with the module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spac
from spac import _core
from spac.errors import InputError
from tests.session.lab import Lab

STUB = ast.parse((Path(spac.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))


def names(body: list[ast.stmt]) -> set[str]:
    """Return the names that the statements define, without private ones."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


def public(owner: object) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def test_functions_and_classes() -> None:
    assert names(STUB.body) == public(_core)


@pytest.mark.parametrize(
    "node",
    [n for n in STUB.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")],
    ids=lambda node: node.name,
)
def test_members(node: ast.ClassDef) -> None:
    assert names(node.body) == public(getattr(_core, node.name))


def test_session_parameters(lab: Lab, target: Path) -> None:
    """The session takes exactly the keywords of the stub."""
    session = next(n for n in STUB.body if isinstance(n, ast.ClassDef) and n.name == "Session")
    init = next(n for n in session.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    with pytest.raises(InputError) as caught:
        lab.session(lab.context(target), no_such_parameter=1)
    known = str(caught.value).split("known are ")[1].split(", ")
    handles = {"owner", "trace", "draft_experts", "projector"}
    sampling = next(n for n in STUB.body if isinstance(n, ast.ClassDef) and n.name == "_Sampling")
    keywords = {argument.arg for argument in init.args.kwonlyargs} | names(sampling.body)
    assert keywords - handles == set(known)
