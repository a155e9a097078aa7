"""The benchmark of several generations at once counts tokens per step and experts per token."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

from bench.parallel import ideal, rounds, table
from spac import demo


def test_more_generations_read_fewer_experts_per_token() -> None:
    args = Namespace(target=demo.TARGET, draft=None, counts=[1, 3], tokens=12, rounds=1, threads=1)
    [[one, three]] = found = rounds(args)
    assert one.tokens_per_step == 1
    assert 1 < three.tokens_per_step <= 3
    assert three.experts_per_token < one.experts_per_token
    assert one.ideal_experts_per_token == pytest.approx(one.experts_per_token, rel=0.1), "one has no batch"
    assert three.ideal_experts_per_token < one.ideal_experts_per_token
    assert len(three.first_token_s) == 3
    lines = table(found, False).splitlines()
    assert lines[2].startswith("| 1 | 1.00 |")
    assert lines[2].count("|") == lines[0].count("|") == table(found, True).splitlines()[3].count("|")


def test_the_ideal_is_the_union_of_all_generations_experts() -> None:
    """Two generations of three tokens, one layer of four experts, of which each token has one."""
    routes = [np.eye(4, dtype=np.bool_)[np.array(each)][:, None] for each in ([0, 1, 2], [0, 2, 2])]
    assert ideal(routes, 2.0) == (1 + 2 + 1) / 6
    assert ideal(routes[:1], 1.0) == 1.0
    assert ideal(routes, 4.0) == 3 / 4, "windows of two tokens; the third one has no second"
