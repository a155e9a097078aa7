"""The draft's routes: which tokens' routes each event has, and that they are these tokens' routes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from tests.session.lab import Lab, generate, prompt, submit


class Routed:
    """An engine whose draft is a copy of its target, with the content of its events by step."""

    def __init__(self, lab: Lab, moe: Path, copy: Path, n_resident: int = 0, **options: Any) -> None:
        self.engine = engine = lab.engine(moe, draft=copy, **options)
        draft_experts = engine._pair.draft_experts
        assert engine.experts is not None
        assert draft_experts is not None
        self.experts, self.draft_experts = engine.experts, draft_experts
        submit(draft_experts, n_resident)
        self.steps: list[tuple[int, list[Any], Any, Any]] = []
        """The accepted tokens, the routes of each event, and the target's own routes."""
        self._tokens: list[Any] = []
        self._end: Any = None
        engine.loop.on("draft_token", lambda event: self._tokens.append(event.routes))
        engine.loop.on("draft_end", self._ended)
        engine.loop.on("verify_end", self._verified)

    def _ended(self, event: _core.DraftEnd) -> None:
        self._end = event.routes

    def _verified(self, step: _core.Step) -> None:
        self.steps.append((step.n_accepted, self._tokens, self._end, self.experts.routes()))
        self._tokens = []

    def run(self, n: int = 16) -> list[tuple[int, list[Any], Any, Any]]:
        self.steps = []
        generate(self.engine, prompt(40), n)
        return self.steps


@pytest.fixture
def copy(moe: Path, tmp_path: Path) -> Path:
    """Return a second file of the same model. Its routers choose the same experts as the target's."""
    return Path(shutil.copy(moe, tmp_path / "copy.gguf"))


def test_a_copy_foretells_what_the_target_chooses(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, n_resident=3, draft_max=5)
    routed.engine.loop.keep_draft_routes(True)
    same, later, n_used = list[bool](), list[bool](), routed.experts.layers[0].n_used
    for length in (5, 1, 0, 3):  # without drafts the draft model falls behind and catches up
        routed.engine.fix_draft_length(length)
        for accepted, tokens, end, real in routed.run():
            n, n_layer = len(tokens), routed.experts.n_layer
            assert accepted == n <= length, "a copy is right"
            assert [each.shape for each in tokens] == [
                (routed.experts.n_layer, i + 1, n_used) for i in range(n)
            ]
            assert end.shape[:2] == (n_layer, n)
            for i, each in enumerate(tokens):
                np.testing.assert_array_equal(each, end[:, : i + 1])
            chosen, real = np.sort(end, axis=2), np.sort(real, axis=2)
            same += (chosen == real[:, :n]).ravel().tolist()
            later += (chosen == real[:, 1 : n + 1]).ravel().tolist()
    # Batches of one and of several tokens are rounded differently. Near-ties may turn out otherwise.
    assert np.mean(same) > 0.97
    assert np.mean(later) < 0.9, "routes of another token would be noticed"


def test_a_draft_that_ends_early_has_evaluated_its_last_token(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, draft_length=6, draft_p_min=1.0)  # no token is that probable
    routed.engine.loop.keep_draft_routes(True)
    for accepted, tokens, end, real in routed.run(4):
        assert (accepted, tokens) == (0, [])
        assert (np.sort(end, axis=2) == np.sort(real, axis=2)).all()


def test_who_does_not_ask_pays_nothing(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, draft_length=3)
    for keeps in (False, True, False):
        routed.engine.loop.keep_draft_routes(keeps)
        before = routed.draft_experts.stats["activations"]
        for _accepted, tokens, end, _real in routed.run():
            assert {each is not None for each in [*tokens, end]} == {keeps}
        assert (routed.draft_experts.stats["activations"] > before) == keeps
    assert routed.draft_experts.take_demand()[1] == 0
