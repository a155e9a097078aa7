"""The answers to several prompts are recorded in one file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.schedulers.trace import Trace
from spac import demo
from spac.replay import Demand
from tools.record_answers import joined, main, prompts_of
from tools.split_dense.text import QUESTIONS


def recorded(folder, *more: str) -> Demand:
    prompts = folder / "prompts.jsonl"
    lines = [json.dumps({"turns": [f"def {name}("]}) for name in ("add", "mean", "sort")]
    prompts.write_text("\n".join(lines) + "\n")
    out = folder / "out.npz"
    main([str(out), str(demo.TARGET), "--prompts", str(prompts), "--number", "2", "--tokens", "12", *more])
    return Demand.load(out)


def test_every_answer_is_a_text_of_the_recording(tmp_path, capsys):
    demand = recorded(tmp_path)
    assert demand.draft_routes is None
    lengths = np.bincount(demand.texts)[1:]
    assert len(lengths) == 2
    assert Trace.of(demand).seq_len.tolist() == lengths.tolist()
    assert (demand.verified == 1).all()
    out = capsys.readouterr().out
    assert "'def mean('" in out
    assert f"2 answers, {len(demand.counts)} steps" in out


def test_drafts_and_their_routes_are_recorded(tmp_path):
    draft = ["--draft", str(demo.TARGET), "--draft-length", "3", "--scheduler", "moe-speq", "--temp", "0"]
    demand = recorded(tmp_path, *draft)
    assert demand.verified.max() == 4
    assert demand.draft_routes is not None
    assert not demand.of_target
    assert demand.accepted.sum() > 0.9 * (demand.verified - 1).sum()  # the draft is the target


def test_texts_of_other_sizes_are_padded():
    counts, layers = np.ones((1, 1, 4), np.int32), Demand.of(np.ones((1, 1, 4), np.int32), 1).layers
    one = np.ones(1, np.int32)
    short = Demand(layers, counts, one, 0 * one, np.zeros((1, 1, 1, 2), np.int32))
    long = Demand(
        layers, counts, 3 * one, one, np.full((1, 1, 3, 2), 3, np.int32), np.ones((1, 1, 2, 2), np.int32)
    )
    whole = joined([short, long])
    assert whole.routes[:, 0, :, 0].tolist() == [[0, -1, -1], [3, 3, 3]]
    assert whole.draft_routes[:, 0, :, 0].tolist() == [[-1, -1], [1, 1]]
    assert whole.texts.tolist() == [1, 2]
    assert joined([short]).draft_routes is None


def test_questions_are_the_prompts_without_files():
    assert prompts_of([], 3) == list(QUESTIONS[:3])


@pytest.mark.parametrize("content", ["no JSON", '{"turns": []}', '["text"]'])
def test_other_files_get_one_line(tmp_path, content):
    (tmp_path / "prompts.jsonl").write_text(content)
    with pytest.raises(SystemExit, match="error: prompts must be lines"):
        main([str(tmp_path / "out.npz"), str(demo.TARGET), "--prompts", str(tmp_path / "prompts.jsonl")])


def test_a_model_without_experts_gets_one_line(tmp_path):
    with pytest.raises(SystemExit, match="error: no answer has a step of experts"):
        main([str(tmp_path / "out.npz"), str(demo.DRAFT), "--number", "1", "--tokens", "4"])
