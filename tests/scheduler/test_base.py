"""The contract refuses malformed plans. Partial plans leave the other rows alone, and shares add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spac import scheduler
from spac.errors import InputError
from spac.scheduler import Event, Plan, share_slots
from spac.scheduler.ewma import best_per_pool
from tests.scheduler.test_logistic import views
from tests.scheduler.views import make_view, models


@given(models())
def test_shares_use_every_slot_that_can_be_used(model):
    n_experts, pools, slots = model
    view = make_view(n_experts, slots, pools)
    shares = share_slots(view.layers, view.pool_slots)
    for pool, n_slots in enumerate(slots):
        members = [i for i in range(len(n_experts)) if pools[i] == pool]
        capacity = sum(n_experts[i] for i in members)
        assert sum(shares[i] for i in members) == min(n_slots, capacity)
        unfilled = [shares[i] for i in members if shares[i] < n_experts[i]]
        assert all(shares[i] <= n_experts[i] for i in members)
        if unfilled:  # a layer that could hold more is at most one behind the largest share
            assert max(shares[i] for i in members) - min(unfilled) <= 1


@pytest.mark.parametrize(
    ("priority", "threshold"),
    [
        (np.zeros((3, 5), complex), np.zeros(3, np.int32)),
        (np.zeros((3, 5), np.int32), np.zeros(3, object)),
        ([[0] * 5] * 3, np.zeros(3, np.int32)),
        (np.zeros((3, 5), np.int32), np.zeros(2, np.int32)),
        (np.zeros(5, np.int32), np.zeros(1, np.int32)),
    ],
)
def test_a_malformed_plan_is_refused(priority, threshold):
    with pytest.raises(InputError):
        Plan(priority, threshold)


@pytest.mark.parametrize("name", ["priority", "threshold"])
def test_nan_is_refused(name):
    given = {"priority": np.zeros((3, 5)), "threshold": np.zeros(3)}
    given[name].flat[2] = np.nan
    with pytest.raises(InputError, match=rf"^a plan's {name} has NaN, .*: give a number$"):
        Plan(**given)


INTEGERS = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
KINDS = st.sampled_from(["bool", *INTEGERS, "float16", "float32", "float64", "longdouble"])


def reals(shape):
    """Return a strategy for arrays of any real type, with infinite, huge and equal values, without NaN."""

    def values(kind):
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            wide = st.floats(allow_nan=False, width=min(64, dtype.itemsize * 8))
            few = st.sampled_from([0.0, -0.0, 0.5, np.inf])
            return arrays(dtype, shape, elements=few | wide)
        if dtype.kind == "b":
            return arrays(dtype, shape)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        near = st.integers(high - 3, high) | st.integers(low, low + 3) | st.integers(0, 3)
        return arrays(dtype, shape, elements=near | st.integers(low, high))

    return KINDS.flatmap(values)


def exact(array):
    """Return an array's values as Python's numbers, whose comparisons are exact."""
    return [int(value) if array.dtype.kind in "iub" else float(value) for value in array.ravel()]


@given(priority=reals((2, 4)), threshold=reals(2))
def test_ranks_keep_the_order_of_any_real_numbers(priority, threshold):
    plan = Plan(priority, threshold)
    ranked = plan.ranked()
    assert ranked.priority.dtype == ranked.threshold.dtype == np.int32
    assert ranked.priority.shape == (2, 4)
    values = exact(priority) + exact(threshold)
    ranks = [*ranked.priority.ravel().tolist(), *ranked.threshold.tolist()]
    for a, rank_a in zip(values, ranks, strict=True):
        for b, rank_b in zip(values, ranks, strict=True):
            assert ((a < b), (a == b)) == ((rank_a < rank_b), (rank_a == rank_b))
    np.testing.assert_array_equal(plan.wanted, ranked.wanted)
    if priority.dtype == threshold.dtype == np.int32:
        assert ranked.priority is priority
        assert ranked.threshold is threshold


@given(new=reals((2, 4)), old=reals((2, 4)), thresholds=reals(4))
def test_rows_of_two_plans_keep_their_order(new, old, thresholds):
    """Ranks of each plan alone would not compare with those of the other."""
    full = Plan(new, thresholds[:2], np.array([True, False])).over(Plan(old, thresholds[2:]))
    ranks = full.ranked().priority
    values = np.array([exact(new[0]), exact(old[1])], object)
    for a, rank_a in zip(values.flat, ranks.flat, strict=True):
        for b, rank_b in zip(values.flat, ranks.flat, strict=True):
            assert (a < b) == (rank_a < rank_b)


@given(priority=reals((3, 5)), slots=st.integers(0, 15))
def test_thresholds_of_any_real_numbers(priority, slots):
    view = make_view([5, 5, 5], [slots], [0, 0, 0])
    wanted = Plan(priority, best_per_pool(priority, view)).wanted.ravel().tolist()
    values = exact(priority)
    chosen = sorted((value for value in values if value > 0), reverse=True)[:slots]
    if slots:
        assert wanted == [value > 0 and value >= chosen[-1] for value in values]
    else:
        most = {np.inf, *(np.iinfo(kind).max for kind in (np.int32, np.int64, np.uint64))}
        assert {value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted} <= most


def test_a_plan_refuses_layers_of_another_length():
    with pytest.raises(InputError, match=r"\[3\]"):
        Plan(np.zeros((3, 5), np.int32), np.zeros(3, np.int32), np.ones(2, np.bool_))


def test_a_partial_plan_leaves_the_other_rows():
    earlier = Plan(np.full((3, 5), 1, np.int32), np.array([1, 2, 3], np.int32))
    partial = Plan(np.full((3, 5), 7, np.int32), np.full(3, 7, np.int32), np.array([False, True, False]))
    full = partial.over(earlier)
    assert full.priority[:, 0].tolist() == [1, 7, 1]
    assert full.threshold.tolist() == [1, 7, 3]
    assert full.layers is None
    assert partial.wanted.any(axis=1).tolist() == [False, True, False]


def test_a_plan_of_another_shape_is_refused():
    with pytest.raises(InputError, match="shape"):
        Plan.nothing(3, 5).over(Plan.nothing(3, 6))


@pytest.mark.parametrize("name", scheduler.names())
def test_a_name_is_that_of_its_scheduler(name):
    assert scheduler.make(name).name == name


@pytest.mark.parametrize("name", scheduler.names())
@given(model=models())
def test_no_plan_wants_more_than_the_slots(name, model):
    n_experts, pools, slots = model
    rng = np.random.default_rng(0)
    view = make_view(n_experts, slots, pools)
    subject = scheduler.make(name)
    plan = subject.on(Event.START, view)
    assert plan is not None
    for _ in range(4):
        for pool, n_slots in enumerate(slots):
            members = [i for i in range(len(n_experts)) if pools[i] == pool]
            assert plan.wanted[members].sum() <= n_slots
        assert not plan.wanted[~view.exists].any()
        if Event.VERIFY_END in subject.events:
            demand = rng.integers(0, 3, view.demand.shape, dtype=np.int32) * view.exists
            plan = subject.on(Event.VERIFY_END, make_view(n_experts, slots, pools, demand)) or plan


@pytest.mark.parametrize("name", sorted({*scheduler.names()} - {"static", "none"}))
def test_steps_without_demand_leave_the_plan_and_what_was_learned(name):
    subject, view = scheduler.make(name), make_view([5, 5, 5], [6])
    subject.on(Event.START, view)
    before = subject.state()
    assert subject.on(Event.VERIFY_END, view) is None
    for key, value in subject.state().items():
        if key != "step":
            np.testing.assert_array_equal(value, before[key], err_msg=key)


@pytest.mark.parametrize(
    "name", [*sorted({*scheduler.names()} - {"moe-infinity"}), "moe-spac:speculative=off"]
)
@settings(max_examples=10)
@given(models(), st.integers(0, 2**32))
def test_a_restored_one_goes_on_as_if_it_had_never_stopped(name, model, seed):
    start, steps = make_view(model[0], model[2], model[1]), list(views(model, seed, 12))
    through, later = scheduler.make(name), scheduler.make(name)
    for each in (through, later):
        each.on(Event.START, start)
    for view in steps[:6]:
        through.on(Event.VERIFY_END, view)
    later.restore({key: value.copy() for key, value in through.state().items()})
    for view in steps[6:]:
        plans = [each.on(Event.VERIFY_END, view) for each in (through, later)]
        if None not in plans:
            np.testing.assert_array_equal(plans[0].priority, plans[1].priority)
            np.testing.assert_array_equal(plans[0].threshold, plans[1].threshold)


RIVALS = ("mixtral-offloading", "moe-infinity", "adapmoe", "fate", "hybrimoe", "profiled")
BAD = {
    "belady": "lru, static, none",
    "lru:window=3": "window",
    "logistic:margin=1": "margin",
    "logistic:margin=-0.1": "margin",
    "moe-spac:speed=9": "no option 'speed'; it knows: levels",
    "moe-spac:levels=four": "levels must be a whole number",
    "moe-spac:balance=2": "balance must be on or off",
    "moe-spac:levels=65": "levels must be 1 to 64, not 65",
    "moe-spac:forgetting=1.5": "forgetting must be 0 to 1, not 1.5",
    "moe-spac:levels": "'levels' is not an option",
    "moe-spac:printed": "nor the preset 'paper'",
    "ewma:decay=1": "'ewma' does not take 'decay': it has no options",
    "moe-speq:confidence=on": "'moe-speq' does not take 'confidence'",
    **{f"{name}:size=4": "it has no options" for name in RIVALS},
    **{
        f"sp-moe:{it}": f"sp-moe.*{it[:6]}" for it in ("cutoff=-1", "cutoff=on", "critical=0", "critical=1.5")
    },
}


@pytest.mark.parametrize("text", BAD)
def test_options_that_cannot_be_used_are_refused_in_one_line(text):
    with pytest.raises(InputError, match=BAD[text]) as refused:
        scheduler.make(text)
    assert "\n" not in str(refused.value)


# The fixed set is spread evenly.


@pytest.mark.parametrize(
    ("n_experts", "slots", "pools", "wanted"),
    [([5, 5, 5], [7], [0, 0, 0], [3, 2, 2]), ([2, 8, 8], [12], [0, 0, 0], [2, 5, 5]),
     ([4, 4, 4], [2, 4], [0, 1, 0], [1, 4, 1])],
    ids=["evenly", "layers with fewer experts give their surplus away", "pools do not share"],
)  # fmt: skip
def test_the_default_set_is_spread_evenly_over_the_layers(n_experts, slots, pools, wanted):
    plan = scheduler.make("static").on(Event.START, make_view(n_experts, slots, pools))
    assert plan is not None
    assert plan.wanted.sum(axis=1).tolist() == wanted
