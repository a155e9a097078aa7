"""The mutations of tools.mutate fit the tree."""

from __future__ import annotations

import pytest

from tools.mutate import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.file)
def test_a_mutation_changes_one_place_and_names_tests(mutation: Mutation) -> None:
    assert mutation.path(ROOT).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    for name in mutation.tests.split():
        assert (ROOT / name).exists()
