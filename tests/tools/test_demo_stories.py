"""The stories of the demo pair: their beginnings, their ends, and the texts that are made of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.errors import InputError
from tools.models import Shape, write_model
from tools.split_dense.__main__ import main

pytest.importorskip("torch", reason="the demo pair is made with torch")
pytest.importorskip("tokenizers", reason="the demo pair is made with tokenizers")

from tools.demo_pair import data, stories
from tools.demo_pair.stories import Story, beginnings, ended


def test_a_story_begins_with_what_its_question_asks_for():
    for question, opening in (*beginnings(0), *beginnings(1)):
        assert opening[0].isupper()
        assert opening.endswith(".")
        assert question[-1] in ".?"
        assert "  " not in question + opening
        who = next(each for each in stories._WHO if each in question)
        assert who.lower() in opening.lower()
    assert beginnings(0) == beginnings(0) != beginnings(1)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("A cat sat. It slept. It woke. It was", "A cat sat. It slept. It woke."),
        ("A cat sat. It slept. It woke. It slept. It woke.", "A cat sat. It slept. It woke."),
        ('A cat sat. "Why?" it said. It slept. And', 'A cat sat. "Why?" it said. It slept.'),
        ("A cat sat. It slept.", ""),
        ("A cat sat. It slept. It said: caf\u00e9. It woke.", ""),
    ],
)
def test_a_story_ends_with_a_sentence_and_says_nothing_twice(written, kept):
    assert ended(written) == kept


@given(st.lists(st.integers(0, 30), max_size=60))
def test_each_story_is_in_one_text(numbers):
    given_stories = [Story(f"Question {number % 3}?", f"Story {number}.") for number in numbers]
    train, held_out = data.texts_of(given_stories)
    for story in set(given_stories):
        found = [sum(text.count(story.story) for text in texts) for texts in (train, held_out)]
        assert sorted(found) == [0, 1]


def test_a_model_continues_them(tmp_path, monkeypatch):
    dense = write_model(tmp_path / "dense.gguf", "llama", Shape(n_ff=256, n_layer=2))
    (tmp_path / "text").write_text("the cat sat on the mat. " * 100)
    words = ["--model", str(dense), "--text", str(tmp_path / "text"), "--threads", "1"]
    main([str(tmp_path / "split.gguf"), *words, "--experts", "6", "--shared", "2", "--used", "3"])
    monkeypatch.setattr(stories, "PER_PART", 3)
    monkeypatch.setattr(stories, "_LENGTH", 400)
    monkeypatch.setattr(stories, "_FEWEST_SENTENCES", 1)
    stories._write_part(tmp_path, tmp_path / "split.gguf", 0)
    found = [Story(*each) for each in json.loads((tmp_path / "0000.json").read_text())]
    begun = dict(beginnings(0))
    assert found
    assert all(story.startswith(begun[question]) for question, story in found)


def test_a_model_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match=r"python -m tools\.split_dense"):
        stories.stories(tmp_path, 1, 1, tmp_path / "no.gguf")
    (tmp_path / "0000.json").write_text(json.dumps([Story("Why?", "It was.")]))
    assert stories.stories(tmp_path, 1, 1, tmp_path / "no.gguf") == [Story("Why?", "It was.")]
