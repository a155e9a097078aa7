"""Targets whose memory is a state can decode. They speculate only if the state can be rolled back."""

from __future__ import annotations

from pathlib import Path

import pytest

from spac.errors import InputError
from tests.session.lab import GREEDY, Lab, disturbed, generate, persist, prompt, take
from tests.session.recurrent import write_lfm2, write_mamba


def test_a_state_decodes_but_does_not_speculate(lab: Lab, tmp_path: Path, target: Path) -> None:
    path = write_mamba(tmp_path / "mamba.gguf")
    context = lab.context(path)
    with pytest.raises(InputError, match="recurrent and cannot take back rejected tokens"):
        lab.session(context, draft_types=["ngram-simple"], draft_max=4)
    session = lab.session(context, **GREEDY)
    first = generate(session, prompt(40), 10)
    other = generate(session, prompt(40, seed=5), 10)
    assert generate(session, prompt(40), 10) == first, "a memory that cannot be cut is filled anew"
    assert first != other
    with pytest.raises(InputError, match="draft model's memory is recurrent"):
        lab.session(lab.context(target), lab.context(path))


def test_a_cancelled_state_is_made_anew(lab: Lab, tmp_path: Path) -> None:
    path = write_mamba(tmp_path / "mamba.gguf")
    expected = generate(lab.plain(path, **GREEDY), prompt(150), 30)
    session = lab.plain(path, **GREEDY)
    with disturbed(session):
        tokens, n_cancelled = persist(session, prompt(150), 30)
    assert n_cancelled > 0
    assert tokens == expected


@pytest.mark.parametrize("sampling", [GREEDY, {"temp": 1.0, "seed": 9}])
def test_a_state_with_snapshots_speculates(
    lab: Lab, tmp_path: Path, other: Path, sampling: dict[str, float]
) -> None:
    """Speculation needs llama.cpp's n_rs_seq of at least the draft length."""
    path = write_lfm2(tmp_path / "lfm2.gguf")
    with pytest.raises(InputError, match="cannot take back rejected tokens"):
        lab.session(lab.context(path), lab.context(other), draft_max=4)
    context = lab.context(path, n_rs_seq=4)
    with pytest.raises(InputError, match=r"can take back 4 tokens: .* the longest draft, 5"):
        lab.session(context, lab.context(other), draft_max=5)
    expected = generate(lab.plain(path, **sampling), prompt(40), 60)
    session = lab.session(context, lab.context(other), draft_max=4, **sampling)
    session.prefill(prompt(40))
    first = session.step()
    assert first.n_drafted > first.n_accepted, "something was taken back"
    assert (first.tokens.tolist() + take(session, 60))[:60] == expected
    assert generate(session, prompt(40), 60) == expected
