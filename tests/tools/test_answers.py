"""tools.answers counts equal answers of two commits."""

from __future__ import annotations

import numpy as np

from tools.answers import compared


def test_answers_are_counted_by_setting_and_kind() -> None:
    ours = {"a, texts, 0": np.array("x"), "a, texts, 1": np.array("y"), "a, logits, 0": np.array([1.0, 2.0])}
    theirs = {**ours, "a, texts, 1": np.array("z")}
    assert compared(ours, theirs) == ["a, texts: 1 of 2 equal", "a, logits: 1 of 1 equal"]
