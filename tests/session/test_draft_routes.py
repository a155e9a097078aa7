"""What the draft's routers chose: which tokens' routes are known when, and that they are the tokens'."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from tests.session.lab import GREEDY, Lab, prompt


class Told:
    """A target and a copy of it as the draft, and what its events say."""

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
    """The same model, loaded once more: what it chooses is what the target will choose."""
    return Path(shutil.copy(moe, tmp_path / "copy.gguf"))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_copy_foretells_what_the_target_chooses(lab: Lab, moe: Path, copy: Path, share: float) -> None:
    told = Told(lab, moe, copy, share, draft_max=5)
    told.session.keep_draft_routes(True)
    told.session.prefill(prompt(40))
    n_used = told.experts.layers[0].n_used
    accepted = 0
    for length in (5, 5, 1, 0, 0, 3, 5, 2):  # without drafts the draft model falls behind and catches up
        told.session.set_draft_length(length)
        step = told.step()
        assert step.n_drafted == length
        assert [each.shape for each in told.tokens] == [
            (told.experts.n_layer, i + 1, n_used) for i in range(length)
        ]
        assert told.end is not None
        assert told.end.shape[:2] == (told.experts.n_layer, length)
        real = told.experts.routes()[:, :length]
        # batches of one and of several tokens are rounded differently: near-ties may fall otherwise
        assert (np.sort(told.end, axis=2) == np.sort(real, axis=2)).mean() > 0.97 if length else True
        for i, each in enumerate(told.tokens):
            np.testing.assert_array_equal(each, told.end[:, : i + 1])
        accepted += step.n_accepted
    assert accepted == 21


def test_routes_of_another_token_would_be_noticed(lab: Lab, moe: Path, copy: Path) -> None:
    told = Told(lab, moe, copy, draft_max=6)
    told.session.keep_draft_routes(True)
    told.session.prefill(prompt(40))
    told.step()
    assert told.end is not None
    later = told.experts.routes()[:, 1:]
    assert (np.sort(told.end, axis=2) == np.sort(later, axis=2)).mean() < 0.9


def test_a_draft_that_ends_early_has_evaluated_its_last_token(lab: Lab, moe: Path, copy: Path) -> None:
    told = Told(lab, moe, copy, draft_max=6, p_min=1.0)  # no token is that probable
    told.session.keep_draft_routes(True)
    told.session.prefill(prompt(40))
    step = told.step()
    assert (step.n_drafted, len(told.tokens)) == (0, 0)
    assert told.end is not None
    assert told.end.shape[1] == 1
    real = told.experts.routes()
    assert (np.sort(told.end, axis=2) == np.sort(real, axis=2)).all()


def test_who_does_not_ask_pays_nothing(lab: Lab, moe: Path, copy: Path) -> None:
    told = Told(lab, moe, copy, draft_max=3)
    told.session.prefill(prompt(40))
    for keeps in (False, True, False):
        told.session.keep_draft_routes(keeps)
        before = told.draft_experts.stats["activations"]
        told.step()
        assert [each is not None for each in told.tokens] == [keeps] * 3
        assert (told.end is not None) == keeps
        assert (told.draft_experts.stats["activations"] > before) == keeps
    assert told.draft_experts.take_demand()[1] == 0


def test_the_demand_stays_the_targets(lab: Lab, moe: Path, copy: Path) -> None:
    told = Told(lab, moe, copy, draft_max=3)
    told.session.keep_draft_routes(True)
    told.session.prefill(prompt(40))
    step = told.step()
    layers = told.experts.layers
    assert step.demand.sum(axis=1).tolist() == [step.n_verified * layer.n_used for layer in layers]


def test_what_cannot_be_told_is_refused(lab: Lab, moe: Path, copy: Path, other: Path) -> None:
    session = lab.session(lab.context(moe), lab.context(other), lab.experts(moe), **GREEDY)
    with pytest.raises(InputError, match="draft model's experts"):
        session.keep_draft_routes(True)
    told = Told(lab, moe, copy, draft_types=["ngram-simple", "draft-simple"])
    with pytest.raises(InputError, match="draft-simple alone"):
        told.session.keep_draft_routes(True)
    plain = lab.session(lab.context(moe), experts=lab.experts(moe))
    plain.keep_draft_routes(False)
    with pytest.raises(InputError, match="nothing is drafted"):
        plain.keep_draft_routes(True)
    with pytest.raises(InputError, match="target's own"):
        lab.session(
            lab.context(moe), lab.context(moe), lab.experts(moe), draft_experts=lab.experts(moe), **GREEDY
        )
