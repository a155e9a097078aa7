"""The draft's routes: which tokens' routes each event has, and that they are these tokens' routes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from tests.session.lab import GREEDY, Lab, prompt


class Routed:
    """A target and a copy of it as the draft, with the content of the session's events."""

    def __init__(self, lab: Lab, moe: Path, copy: Path, share: float = 0.0, **params: object) -> None:
        contexts = lab.context(moe), lab.context(copy)
        experts, draft_experts = lab.experts(moe), lab.experts(copy)
        if experts is None or draft_experts is None:
            pytest.skip("no device holds the models' experts")
        self.experts, self.draft_experts = experts, draft_experts
        n_layer, n_expert = draft_experts.n_layer, draft_experts.n_expert
        draft_experts.attach_slots(round(share * n_layer * n_expert))
        draft_experts.submit(np.ones((n_layer, n_expert), np.int32), np.ones(n_layer, np.int32))
        assert draft_experts.settle(10)
        self.session = lab.session(*contexts, experts, draft_experts=draft_experts, **{**GREEDY, **params})
        self.tokens: list[np.ndarray | None] = []
        self.end: np.ndarray | None = None
        self.session.on("draft_token", lambda event: self.tokens.append(event.routes))
        self.session.on("draft_end", self._note_end)

    def _note_end(self, event: _core.DraftEnd) -> None:
        self.end = event.routes

    def step(self) -> _core.Step:
        self.tokens.clear()
        return self.session.step()


@pytest.fixture
def copy(moe: Path, tmp_path: Path) -> Path:
    """Return a second file of the same model. Its routers choose the same experts as the target's."""
    return Path(shutil.copy(moe, tmp_path / "copy.gguf"))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_copy_foretells_what_the_target_chooses(lab: Lab, moe: Path, copy: Path, share: float) -> None:
    routed = Routed(lab, moe, copy, share, draft_max=5)
    routed.session.keep_draft_routes(True)
    routed.session.prefill(prompt(40))
    n_used = routed.experts.layers[0].n_used
    accepted = 0
    for length in (5, 5, 1, 0, 0, 3, 5, 2):  # without drafts the draft model falls behind and catches up
        routed.session.set_draft_length(length)
        step = routed.step()
        assert step.n_drafted == length
        assert [each.shape for each in routed.tokens] == [
            (routed.experts.n_layer, i + 1, n_used) for i in range(length)
        ]
        assert routed.end is not None
        assert routed.end.shape[:2] == (routed.experts.n_layer, length)
        real = routed.experts.routes()[:, :length]
        # Batches of one and of several tokens are rounded differently. Near-ties may turn out otherwise.
        assert (np.sort(routed.end, axis=2) == np.sort(real, axis=2)).mean() > 0.97 if length else True
        for i, each in enumerate(routed.tokens):
            np.testing.assert_array_equal(each, routed.end[:, : i + 1])
        accepted += step.n_accepted
    assert accepted == 21


def test_routes_of_another_token_would_be_noticed(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, draft_max=6)
    routed.session.keep_draft_routes(True)
    routed.session.prefill(prompt(40))
    routed.step()
    assert routed.end is not None
    later = routed.experts.routes()[:, 1:]
    assert (np.sort(routed.end, axis=2) == np.sort(later, axis=2)).mean() < 0.9


def test_a_draft_that_ends_early_has_evaluated_its_last_token(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, draft_max=6, p_min=1.0)  # no token is that probable
    routed.session.keep_draft_routes(True)
    routed.session.prefill(prompt(40))
    step = routed.step()
    assert (step.n_drafted, len(routed.tokens)) == (0, 0)
    assert routed.end is not None
    assert routed.end.shape[1] == 1
    real = routed.experts.routes()
    assert (np.sort(routed.end, axis=2) == np.sort(real, axis=2)).all()


def test_who_does_not_ask_pays_nothing(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, draft_max=3)
    routed.session.prefill(prompt(40))
    for keeps in (False, True, False):
        routed.session.keep_draft_routes(keeps)
        before = routed.draft_experts.stats["activations"]
        routed.step()
        assert [each is not None for each in routed.tokens] == [keeps] * 3
        assert (routed.end is not None) == keeps
        assert (routed.draft_experts.stats["activations"] > before) == keeps
    assert routed.draft_experts.take_demand()[1] == 0


def test_the_demand_stays_the_targets(lab: Lab, moe: Path, copy: Path) -> None:
    routed = Routed(lab, moe, copy, draft_max=3)
    routed.session.keep_draft_routes(True)
    routed.session.prefill(prompt(40))
    step = routed.step()
    layers = routed.experts.layers
    assert step.demand.sum(axis=1).tolist() == [step.n_verified * layer.n_used for layer in layers]


def test_what_cannot_be_routed_is_refused(lab: Lab, moe: Path, copy: Path, other: Path) -> None:
    session = lab.session(lab.context(moe), lab.context(other), lab.experts(moe), **GREEDY)
    with pytest.raises(InputError, match="draft model's experts"):
        session.keep_draft_routes(True)
    routed = Routed(lab, moe, copy, draft_types=["ngram-simple", "draft-simple"])
    with pytest.raises(InputError, match="draft-simple alone"):
        routed.session.keep_draft_routes(True)
    plain = lab.session(lab.context(moe), experts=lab.experts(moe))
    plain.keep_draft_routes(False)
    with pytest.raises(InputError, match="nothing is drafted"):
        plain.keep_draft_routes(True)
    with pytest.raises(InputError, match="target's own"):
        lab.session(
            lab.context(moe), lab.context(moe), lab.experts(moe), draft_experts=lab.experts(moe), **GREEDY
        )
