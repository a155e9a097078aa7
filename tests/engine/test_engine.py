"""These tests use an engine as an application does: its life, its end, and the calls that it refuses."""

import threading
import time

import numpy as np
import pytest

from spac.config import SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.model import c_api
from spac.scheduler import Event, Plan, Scheduler
from tests.engine.conftest import config, text_of
from tests.threads import n_threads


@pytest.fixture
def engine(target):
    with Engine(config(target)) as engine:
        yield engine


def test_an_engine_leaves_no_thread_behind(target):
    with Engine(config(target)) as engine:  # the first engine may start threads that the process keeps
        "".join(engine.generate("x", 4))
    before = n_threads()
    for _ in range(3):
        with Engine(config(target)) as engine:
            "".join(engine.generate("x", 4))
    assert n_threads() <= before


def test_two_engines_do_not_meet(target, tiny_model):
    other = tiny_model("deepseek2")
    with Engine(config(target)) as a:
        alone = "".join(a.generate("def f(", 16))
    with Engine(config(target)) as a, Engine(config(other, slots=0.5)) as b:
        first, second = a.generate("def f(", 16), b.generate("def f(", 16)
        text = ""
        for piece in first:
            text += piece
            next(second, None)
        assert text == alone
        assert a.n_experts != b.n_experts


def test_warnings_of_a_model_before_are_not_this_ones(target):
    c_api.listen()
    c_api._on_log(3, b"spac: the block of a model before\n")
    with Engine(config(target)) as engine:
        assert not any("model before" in note for note in engine.notes)
        c_api._on_log(3, b"spac: of this model\n")
        assert engine.notes[-1] == "of this model"


def test_an_engine_generates_again_and_keeps_what_it_has_read(engine):
    prompt = "def add(a, b):\n    return a + b\n"
    first = engine.generate(prompt, 8)
    text = "".join(first)
    second = engine.generate(
        prompt, 8, sampling=SamplingConfig(temp=0.0, ignore_eos=True, seed=first.stats.seed)
    )
    assert "".join(second) == text
    assert second.stats.prefilled_tokens == 1 < first.stats.prefilled_tokens  # the last one


def test_a_new_generation_ends_the_one_before(engine):
    first = engine.generate("def f(", 50)
    next(first)
    second = engine.generate("def g(", 5)
    assert list(first) == []
    assert first.reason == "cancelled"
    "".join(second)
    assert second.reason == "length"
    assert len(second.tokens) == 5


def test_tokens_are_as_good_as_text(engine):
    tokens = engine.tokenize("def f(")
    assert tokens.dtype == np.int32
    assert len({text_of(engine, prompt) for prompt in ("def f(", tokens, tokens.tolist())}) == 1


def test_a_generation_may_end_before_it_begins(engine):
    cancelled = engine.generate("def f(", 10)
    cancelled.cancel()
    assert (list(cancelled), cancelled.reason) == ([], "cancelled")
    empty = engine.generate("x", 0)
    assert (list(empty), empty.reason) == ([], "length")
    assert text_of(engine)


def test_cancel_comes_from_any_thread(engine):
    generation = engine.generate("def f(", None)
    next(generation)
    canceller = threading.Timer(0.05, generation.cancel)
    canceller.start()
    started = time.perf_counter()
    list(generation)
    canceller.join()
    assert generation.reason in ("cancelled", "length")  # a fast machine fills the context first
    assert time.perf_counter() - started < 10
    assert "".join(engine.generate("def f(", 4)) != ""


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fault"),
    [
        ([], 1, "empty"),
        ("x" * 3000, 1, "raise --ctx"),
        ("x", -1, "max_tokens"),
        ([99999], 1, "vocab"),
        ([[1, 2]], 1, "sequence of token numbers"),
        ([1.5], 1, "sequence of token numbers"),
    ],
)
def test_prompts_that_cannot_be_are_refused(engine, prompt, max_tokens, fault):
    with pytest.raises(InputError, match=fault):
        "".join(engine.generate(prompt, max_tokens))
    assert "".join(engine.generate("x", 2)) != ""


def test_parameters_of_llama_cpp_are_reachable(target):
    for room in ("model_params", "context_params"):
        with pytest.raises(InputError, match=r"n_gpu_layers|n_ubatch"):
            Engine(config(target, **{room: {"n_gpu_layer": 1}}))
    with Engine(config(target, context_params={"n_ctx": 256})) as engine:
        assert engine.generate("x", 1).stats.context == 256


class Greedy(Scheduler):
    """Scheduler that wants the experts of the last demand, and records its calls."""

    name = "greedy"
    events = frozenset(Event)

    def __init__(self):
        self.seen = []

    def on(self, event, view):
        self.seen.append((event, int(view.demand.sum()), view.n_drafted, view.n_verified, view.n_accepted))
        assert view.slot_of.shape == view.demand.shape == (view.n_layer, view.n_expert)
        only_first = np.arange(view.n_layer) == 0
        return Plan(view.demand.copy(), np.ones(view.n_layer, np.int32), only_first)


def test_a_scheduler_sees_every_step(target, tiny_model):
    scheduler = Greedy()
    draft = tiny_model("qwen3", n_layer=1)
    with Engine(config(target, draft=draft, draft_length=3, slots=0.4, scheduler=scheduler)) as engine:
        generation = engine.generate("def f(", 8)
        list(generation)
        layers = engine.experts.residency() >= 0
    kinds = [event for event, *_ in scheduler.seen]
    stats = generation.stats
    assert kinds[0] == Event.START
    assert kinds.count(Event.VERIFY_END) == kinds.count(Event.DRAFT_END) == stats.steps
    assert kinds.count(Event.DRAFT_TOKEN) >= stats.drafted_tokens
    steps = [seen for seen in scheduler.seen if seen[0] == Event.VERIFY_END]
    assert all(verified == drafted + 1 for _, _, drafted, verified, _ in steps)
    assert sum(demand for _, demand, *_ in steps) == stats.activations
    assert not layers[1:].any()


def test_a_scheduler_that_fails_is_heard(target):
    class Broken(Greedy):
        def on(self, event, view):
            if event == Event.VERIFY_END:
                raise ZeroDivisionError("broken")

    broken = config(target, scheduler=Broken(), slots=3)
    with Engine(broken) as engine, pytest.raises(ZeroDivisionError):
        list(engine.generate("x", 3))


def test_progress_is_reported_and_can_stop(target):
    seen = []
    with Engine(config(target), progress=lambda path, done: seen.append((path, done)) or True):
        pass
    assert seen[-1] == (target, 1.0)

    def impatient(path, done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Engine(config(target), progress=impatient)
