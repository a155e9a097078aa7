"""Draft types that read the target's hidden states: MTP, on a model with a random prediction layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spac.errors import Cancelled
from tests.conftest import TinyModel
from tests.session.lab import GREEDY, Lab, disturbed, generate, persist, prompt, take

MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP


@pytest.fixture
def mtp(tiny_model: TinyModel) -> Path:
    """Return a tiny GLM-4 MoE whose last layer predicts the token after the next."""
    return tiny_model("glm4moe", n_layer=4, options={"mtp": 1})


@pytest.mark.parametrize("sampling", [GREEDY, {"temp": 1.0, "seed": 3}])
def test_the_text_is_that_of_plain_decoding(lab: Lab, mtp: Path, sampling: dict[str, Any]) -> None:
    expected = generate(lab.plain(mtp, **sampling), prompt(150), 60)
    target = lab.context(mtp)
    draft = lab.context(mtp, ctx_type=MTP_CONTEXT, ctx_other=target)
    experts = lab.experts(mtp)
    session = lab.session(target, draft, experts, draft_types=["draft-mtp"], draft_max=3, **sampling)
    session.prefill(prompt(150))
    tokens: list[int] = []
    n_drafted = 0
    while len(tokens) < 30:
        step = session.step()
        tokens += step.tokens.tolist()
        n_drafted += step.n_drafted
        if experts is not None and experts.n_layer:
            n_used = experts.layers[0].n_used
            assert set(step.demand.sum(axis=1).tolist()) <= {0, n_used * step.n_verified}
    assert n_drafted > 30
    session.cancel()
    with pytest.raises(Cancelled):
        session.step()
    session.set_draft_length(1)
    tokens += take(session, 10)
    session.set_draft_length(3)
    tokens += take(session, 60 - len(tokens))
    assert tokens == expected
    shorter = prompt(150)[:100]
    assert generate(session, shorter, 20) == generate(lab.plain(mtp, **sampling), shorter, 20)


def test_cancelling_at_any_moment_keeps_target_and_draft_together(lab: Lab, mtp: Path) -> None:
    expected = generate(lab.plain(mtp, **GREEDY), prompt(180), 60)
    target = lab.context(mtp)
    draft = lab.context(mtp, ctx_type=MTP_CONTEXT, ctx_other=target)
    session = lab.session(target, draft, draft_types=["draft-mtp"], draft_max=3, **GREEDY)
    with disturbed(session):
        tokens, n_cancelled = persist(session, prompt(180), 60)
    assert n_cancelled > 0
    assert tokens == expected
