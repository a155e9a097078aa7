"""The stub _core.pyi agrees with the module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spac
from spac import _core
from spac.errors import InputError

STUB = ast.parse((Path(spac.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))


def names(body: list[ast.stmt]) -> set[str]:
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


def test_parameters() -> None:
    with pytest.raises(InputError) as caught:
        _core.ServerLoop("", "", 0, trace=_core.Trace(), no_such_parameter=1)
    known = str(caught.value).split("known are ")[1].split(", ")
    stubs = {node.name: node.body for node in STUB.body if isinstance(node, ast.ClassDef)}
    assert names(stubs["_Drafts"]) | names(stubs["_Sampling"]) == set(known)
