"""SP-MoE's scheduler runs on real pairs. Drafts have the target's shape, or are a quantized copy or dense."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from spac.config import EngineConfig
from spac.demo import PROMPT, TARGET
from spac.engine import Engine
from spac.errors import InputError
from spac.papers.sp_moe import SpMoeScheduler
from spac.replay import replay
from spac.run import main
from spac.scheduler import Event, Plan, Scheduler, make
from spac.scheduler.demand import Demand
from tests.engine.conftest import config as usual
from tests.papers.fidelity import Fidelity
from tools.models.variants import dense_sibling
from tools.self_draft import quantize

N_EXPERT, N_USED, LENGTH = 32, 4, 6


class Predictions(Scheduler):
    """Scheduler that records what the target's routers choose for the draft's states and the target's."""

    name = "predictions"
    events = frozenset({Event.START, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END})
    routers, wants_routes = "target", True

    def __init__(self) -> None:
        self.by_token: list[int] = []
        self.predicted: list[np.ndarray] = []
        self.real: list[np.ndarray] = []

    def on(self, event, view):
        if event == Event.START:
            self.critical = np.array([layer.n_used for layer in view.layers], np.int32)
            return Plan.nothing(view.n_layer, view.n_expert)
        if event == Event.VERIFY_END:
            self.real.append(padded(view.routes))
            return None
        assert view.draft_routes is not None
        assert (view.draft_routes >= 0).all()
        if event == Event.DRAFT_TOKEN:
            assert view.draft_routes.shape[1] == view.n_drafted
        else:
            self.by_token.append(view.draft_routes.shape[1] - view.n_drafted)
            self.predicted.append(padded(view.draft_routes))
        return None

    @property
    def fidelity(self) -> Fidelity:
        return Fidelity.of(np.stack(self.predicted), np.stack(self.real))


def padded(routes):
    """Return the routes, padded for every token of a step."""
    return np.pad(routes, ((0, 0), (0, LENGTH + 1 - routes.shape[1]), (0, 0)), constant_values=-1)


def config(target, draft, scheduler, **options):
    defaults = {"draft_length": LENGTH, "slots": "25%", "deterministic": True}
    return usual(target, draft=draft, scheduler=scheduler, **{**defaults, **options})


def run(*args, **options):
    with Engine(config(*args, **options)) as engine:
        generation = engine.generate(PROMPT, 60)
        return "".join(generation), generation.stats


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return quantize(TARGET, tmp_path_factory.mktemp("draft") / "target-Q4_0.gguf")


@pytest.fixture(scope="module")
def plain(draft):
    return run(TARGET, draft, "none")


@pytest.mark.parametrize("timing", [{}, {"deterministic": False}, {"gpu_layers_draft": 0}])
def test_the_text_is_what_it_is_without_residents(draft, plain, timing):
    text, stats = run(TARGET, draft, "sp-moe", **timing)
    assert text == plain[0]
    assert stats.acceptance == plain[1].acceptance > 0.4
    assert stats.uploads > 0


def test_the_targets_routers_know_a_quantized_copys_states(draft):
    predictions = Predictions()
    run(TARGET, draft, predictions)
    assert len(predictions.by_token) > 5
    assert set(predictions.by_token) == {0}
    fidelity = predictions.fidelity
    assert fidelity.same.min() > 0.8, f"{N_USED / N_EXPERT} would be chance"
    predictions.real = [np.roll(each, 1, axis=1) for each in predictions.real]
    assert predictions.fidelity.same.max() < 0.5, "those of another token"


def test_a_refused_token_shows_the_states_of_the_last_one(draft):
    predictions = Predictions()
    run(TARGET, draft, predictions, draft_p_min=0.5)
    assert set(predictions.by_token) == {0, 1}
    assert predictions.fidelity.same.min() > 0.8


def test_what_is_predicted_is_hit(draft):
    """Plans are carried out before the verification. Hits exceed those of history."""
    _, stats = run(TARGET, draft, "sp-moe")
    _, history = run(TARGET, draft, "lru")
    assert stats.hit_rate > history.hit_rate + 0.05
    assert stats.hit_rate_distinct > history.hit_rate_distinct + 0.05
    _, without = run(TARGET, draft, make("sp-moe", cutoff=0))
    assert (without.hit_rate, without.hit_rate_distinct) == (history.hit_rate, history.hit_rate_distinct)
    half = run(TARGET, draft, "sp-moe:cutoff=2")[1]
    assert without.hit_rate < half.hit_rate < stats.hit_rate


def test_a_dense_draft_of_the_same_shape(tiny_model, tmp_path):
    target = tiny_model("mixtral", n_expert=16, n_layer=4)
    sibling = dense_sibling(target, tmp_path / "dense.gguf")
    predictions = Predictions()
    text, _ = run(target, sibling, predictions)
    same, chance = predictions.fidelity.same, 2 / 16
    assert same[0] == 1.0, "nothing but attention lies before it, and that is the same in both"
    assert same[1:].min() > 1.5 * chance
    assert same.mean() > 3 * chance
    assert run(target, sibling, "sp-moe")[0] == run(target, sibling, "none")[0] == text


def test_layers_are_known_before_their_token(draft):
    """Also in drafts of one token."""

    class Ordered(SpMoeScheduler):
        def on(self, event, view):
            seen.append((event, view.layer))
            return super().on(event, view)

    seen: list[tuple[Event, int]] = []
    options = {"deterministic": False, "draft_length": 1, "gpu_layers_draft": 0}
    run(TARGET, draft, Ordered(cutoff=5), **options)
    ahead = [now[1] for now, then in pairwise(seen) if now[0] == Event.DRAFT_LAYER == then[0]]
    assert ahead, "more than one event in some token"
    assert min(ahead) < 4
    assert {event for event, layer in seen if layer >= 0} == {Event.DRAFT_LAYER}


def test_drafts_that_do_not_fit_are_refused_in_one_line(capsys, tiny_model):
    def said(capsys):
        [line] = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        return line

    options = ["--scheduler", "sp-moe", "--device", "simulated", "-n", "4", "-p", "x"]
    assert main(options) == 2
    line = said(capsys)
    assert "draft.gguf shows 2 layers of width 256 on simulated where target.gguf has 5 of width 256" in line
    assert "--draft" in line
    assert main([*options, "--target", str(TARGET)]) == 2
    assert "there is no draft" in said(capsys)
    partly = EngineConfig(
        target=tiny_model("mixtral"), draft=tiny_model("llama"), device="simulated", scheduler="sp-moe",
        model_params={"n_gpu_layers": 2},
    )  # fmt: skip
    with pytest.raises(InputError, match=r"shows . layers of width 64 on simulated where .* has 3 of"):
        Engine(partly)
    other = ["--target", str(tiny_model("mixtral")), "--draft", str(tiny_model("llama"))]
    assert main([*options, *other, "--draft-type", "draft-simple,ngram-simple"]) == 2
    assert "is not draft-simple alone" in said(capsys)


def test_a_recorded_run_can_be_replayed(draft, plain, tmp_path, capsys):
    path = tmp_path / "run.npz"
    words = ["--target", TARGET, "--draft", draft, "--scheduler", "sp-moe", "--device", "simulated",
             "--temp", 0, "--ignore-eos", "--slots", "25%", "--draft-length", LENGTH, "-n", 60, "-p", PROMPT,
             "--ctx", 512, "--deterministic", "-q", "--stats-file"]  # fmt: skip
    assert main([str(word) for word in (*words, tmp_path / "plain.json")]) == 0
    capsys.readouterr()
    assert main([str(word) for word in (*words, tmp_path / "recorded.json", "--record", path)]) == 0
    assert capsys.readouterr().out.rstrip("\n") == plain[0].rstrip("\n")
    stats = [json.loads((tmp_path / name).read_text()) for name in ("plain.json", "recorded.json")]
    for name in ("hit_rate", "hit_rate_distinct", "scheduler", "scheduler_options"):
        assert stats[0][name] == stats[1][name], name
    demand = Demand.load(path)
    assert demand.of_target
    assert demand.draft_routes.shape[3] == 3 * N_USED, "more than sp-moe follows, in all layers"
    rates = [replay(make(name), demand, 40).hit_rate_distinct for name in ("lru", "sp-moe:cutoff=5")]
    assert rates[1] > rates[0] + 0.05
