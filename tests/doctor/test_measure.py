"""`spac doctor --measure` shows what an engine learns of a model's costs."""

from __future__ import annotations

import json

import pytest

from spac import doctor
from spac.doctor import main, measure


def test_a_pairs_costs(tiny_model, monkeypatch):
    monkeypatch.setenv("SPAC_DEVICE", "simulated")
    monkeypatch.setattr(measure, "_TOKENS", 8)
    monkeypatch.setattr(measure, "_STEPS", 3)
    target = tiny_model("deepseek2")
    with_draft = list(measure.costs(target, tiny_model("qwen3", n_layer=1), None))
    alone = list(measure.costs(target, None, None))
    assert {finding.state for finding in with_draft + alone} == {"ok"}
    names = [[finding.name for finding in found] for found in (alone, with_draft)]
    assert "draft" not in names[0]
    assert "draft" in names[1]
    assert [found[-1].name for found in (alone, with_draft)] == ["verification"] * 2
    assert with_draft[-1].found.count(" for ") == 6, "of 17 sizes"
    experts = [finding for finding in alone if finding.name.startswith("expert of ")]
    assert experts
    assert all("CPU " in finding.found and "; device " in finding.found for finding in experts)


def test_a_model_without_experts_has_none(tiny_model):
    [finding] = measure.costs(tiny_model("qwen3"), None, None)
    assert (finding.state, finding.found) == ("off", "not measured")


def test_it_is_the_last_check(monkeypatch, capsys, tiny_model):
    given = []

    def found(*arguments):
        given.append(arguments)
        yield from ()

    monkeypatch.setattr(doctor, "costs", found)
    monkeypatch.setattr(doctor, "_demo", lambda: iter(()))
    target, draft = tiny_model("qwen3moe"), tiny_model("qwen3")
    for words in ([], ["--measure"], ["--measure", "--target", target, "--draft", draft]):
        assert main(["--json", "--no-self-test", *map(str, words)]) == 0
        assert json.loads(capsys.readouterr().out)["healthy"]
    assert given == [(None, None, None), (target, draft, None)]


@pytest.mark.parametrize("measures", [False, True])
def test_a_draft_alone_is_refused(tiny_model, capsys, measures):
    pair = ("--draft", str(tiny_model("qwen3")))
    words = ("--measure", *pair) if measures else ("--target", str(tiny_model("qwen3moe")), *pair)
    assert main(words) == 2
    assert "--draft goes with --measure and --target" in capsys.readouterr().err
