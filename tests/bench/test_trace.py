"""Traces of routing: their file, their windows, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.schedulers.trace import Trace
from spac.errors import InputError

EXPERTS = np.array([[[t % 5, (t + 1) % 5], [(2 * t) % 5, -1]] for t in range(7)], np.int32)
TRACE = Trace(EXPERTS, np.array([4, 3], np.int32), 5, 100)


def test_a_trace_is_the_same_from_its_file(tmp_path):
    TRACE.save(tmp_path / "a.npz")
    again = Trace.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(again.experts, EXPERTS)
    assert (again.seq_len.tolist(), again.n_expert, again.expert_bytes) == ([4, 3], 5, 100)


def test_windows_do_not_cross_sequences():
    demand = TRACE.demand(3)
    assert demand.verified.tolist() == [3, 1, 3]
    assert demand.accepted.tolist() == [2, 0, 2]
    assert demand.counts.sum(axis=(1, 2)).tolist() == [9, 3, 9]
    assert demand.counts[0, 0].tolist() == [1, 2, 2, 1, 0]
    assert demand.routes[1, :, 0].tolist() == [[3, 4], [1, -1]]
    assert (demand.routes[1, :, 1:] == -1).all()
    assert demand.layers[0].expert_bytes == 100


def test_a_recording_is_a_trace_of_its_accepted_tokens(tmp_path):
    demand = TRACE.demand(3)
    np.testing.assert_array_equal(Trace.of(demand).experts, EXPERTS)
    rejected = replace(demand, accepted=np.array([1, 0, 0], np.int32))
    np.testing.assert_array_equal(Trace.of(rejected).experts, EXPERTS[[0, 1, 3, 4]])
    rejected.save(tmp_path / "demand.npz")
    np.testing.assert_array_equal(Trace.load(tmp_path / "demand.npz").experts, EXPERTS[[0, 1, 3, 4]])


def test_parts_keep_ends():
    last = TRACE.last(5)
    assert last.seq_len.tolist() == [2, 3]
    np.testing.assert_array_equal(last.experts, EXPERTS[2:])
    assert TRACE.last(3).seq_len.tolist() == [3]
    assert TRACE.last(100).seq_len.tolist() == [4, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": EXPERTS[:, 0]}, r"shape \[token, layer, used\]"),
        ({"seq_len": np.array([4, 4])}, "sum is 7"),
        ({"n_expert": 4}, "from -1 to 3, not -1 to 4"),
        ({"experts": EXPERTS.astype(float)}, "experts must be whole numbers"),
        ({"experts": np.full_like(EXPERTS, -1)}, "at least one expert"),
        ({"n_expert": None}, "is not a trace, which is a .npz with experts, seq_len and n_expert"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, change, message):
    fields = {"experts": EXPERTS, "seq_len": np.array([4, 3]), "n_expert": 5, **change}
    np.savez(tmp_path / "a.npz", **{name: value for name, value in fields.items() if value is not None})
    with pytest.raises(InputError, match=message) as refused:
        Trace.load(tmp_path / "a.npz")
    assert "\n" not in str(refused.value)
    assert str(tmp_path / "a.npz") in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 damaged", b"text"])
def test_other_files_are_refused(tmp_path, data):
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match="not a trace"):
        Trace.load(tmp_path / "a.npz")


def test_demand_without_routes_is_no_trace():
    demand = TRACE.demand()
    with pytest.raises(InputError, match="no routes"):
        Trace.of(replace(demand, routes=None))
