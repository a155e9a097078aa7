"""Let SmolLM2-135M-Instruct write the stories that the demo pair is trained on.

Each story has a question and a first sentence from the lists below, and the model continues that sentence.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from torch import multiprocessing

from spac.errors import InputError
from spac.model.c_api import Model
from tools.split_dense.fetch import split_model
from tools.split_dense.network import Split

LICENCE = "Apache-2.0"
"""The license of SmolLM2-135M-Instruct."""
N_PARTS, PER_PART = 92, 128
_LENGTH = 176
"""The tokens of a story with its question, at most."""
_HEAT, _PENALTY = 0.6, 1.5
_FEWEST_SENTENCES = 3
_SYSTEM = "You write short stories for children."
_WHO = (
    "a cat", "a little dog", "an old bear", "a brave mouse", "a small dragon", "a lonely robot",
    "a young fox", "a white rabbit", "a tired horse", "a clever crow", "a kind giant", "a shy turtle",
    "a hungry wolf", "a duck", "a little bird", "an elephant", "a lion", "a frog", "a hedgehog",
    "a sleepy owl", "a monkey", "a green parrot", "a baby whale", "a red squirrel", "a proud cow", "a goat",
    "a tiny ant", "a bee", "a butterfly", "a snail", "a girl named Mia", "a boy named Tom",
    "a girl named Anna", "a boy named Ben", "a girl named Lucy", "a boy named Sam", "an old woman",
    "an old man", "a young king", "a princess", "a baker", "a farmer", "a fisherman", "a teacher",
    "a sailor", "a gardener", "a painter", "a doctor", "a musician", "a clown", "a little witch",
    "a snowman", "a toy train", "a ghost", "a star", "a cloud",
)  # fmt: skip
_WHAT = (
    ("finds a key", "found a key"), ("wants to fly", "wanted to fly"),
    ("is afraid of the dark", "was afraid of the dark"), ("loses a red ball", "lost a red ball"),
    ("helps a friend", "helped a friend"), ("learns to swim", "learned to swim"),
    ("looks at the moon", "looked at the moon"), ("bakes a cake", "baked a cake"),
    ("plants a tree", "planted a tree"), ("builds a house", "built a house"), ("finds a map", "found a map"),
    ("gets lost", "got lost"), ("meets a stranger", "met a stranger"), ("sings a song", "sang a song"),
    ("cannot sleep", "could not sleep"), ("tells a lie", "told a lie"), ("finds a box", "found a box"),
    ("wants a friend", "wanted a friend"), ("has a dream", "had a dream"),
    ("hears a noise", "heard a noise"), ("sees the snow", "saw the snow"), ("wins a race", "won a race"),
    ("breaks a window", "broke a window"), ("finds an egg", "found an egg"),
    ("has a birthday", "had a birthday"), ("loses a hat", "lost a hat"), ("makes soup", "made soup"),
    ("paints a picture", "painted a picture"), ("gives a gift", "gave a gift"),
    ("reads a book", "read a book"), ("is very hungry", "was very hungry"),
    ("shares an apple", "shared an apple"), ("goes on a trip", "went on a trip"),
    ("finds a coin", "found a coin"), ("crosses a river", "crossed a river"),
    ("climbs a hill", "climbed a hill"), ("misses home", "missed home"), ("sees a rainbow", "saw a rainbow"),
    ("waits for a letter", "waited for a letter"), ("catches a cold", "caught a cold"),
)  # fmt: skip
_WHERE = (
    "in the forest", "by the sea", "in a small village", "at school", "on a farm", "in the garden",
    "in the city", "near the river", "on a boat", "in the mountains", "at the market", "in an old house",
    "in the park", "on an island", "in a castle", "under a big tree", "",
)  # fmt: skip
_QUESTIONS = (
    "Tell me a story about {who}.", "Tell me a story about {who} who {does} {where}.",
    "Write a short story about {who} who {does}.", "Write a story about {who} {where}.",
    "Can you tell me a story about {who} who {does}?", "A story about {who}, please.",
    "What happened to {who} who {does} {where}?", "I would like to hear a story about {who} who {does}.",
)  # fmt: skip
_OPENINGS = (
    "Once upon a time, there was {who} who {did} {where}.", "Once upon a time, {who} {did} {where}.",
    "One day, {who} {did} {where}.", "There was once {who} who {did} {where}.", "{who} {did} {where}.",
    "It was a sunny morning. {who} {did} {where}.", "Long ago, {who} {did} {where}.",
    "One night, {who} {did} {where}.",
)  # fmt: skip
_SENTENCE = re.compile(r"[^.!?]+[.!?]+[\"')]*\s*")


class Story(NamedTuple):
    """A question and its story."""

    question: str
    story: str


def _joined(form: str, words: dict[str, str]) -> str:
    """Return a form with its words, and a capital letter at the beginning of each sentence."""
    text = re.sub(r" +([.,?])", r"\1", re.sub(" +", " ", form.format(**words)))
    return re.sub(r"(^|\. )([a-z])", lambda found: found[1] + found[2].upper(), text)


def beginnings(number: int) -> list[Story]:
    """Return the questions and the first sentences of a part; its number determines them."""
    random, found = Random(number), list[Story]()
    for _ in range(PER_PART):
        does, did = random.choice(_WHAT)
        words = {"who": random.choice(_WHO), "where": random.choice(_WHERE), "does": does, "did": did}
        found.append(
            Story(_joined(random.choice(_QUESTIONS), words), _joined(random.choice(_OPENINGS), words))
        )
    return found


def ended(text: str) -> str:
    """Return a story up to its last whole sentence, or to the first sentence that it says again.

    A story of fewer than three sentences, or with characters outside ASCII, is empty.
    """
    sentences = list[str]()
    for sentence in _SENTENCE.findall(text):
        if sentence.strip() in map(str.strip, sentences):
            break
        sentences.append(sentence)
    whole = "".join(sentences).strip()
    return whole if len(sentences) >= _FEWEST_SENTENCES and whole.isascii() else ""


def _write_part(folder: Path, model: Path, number: int) -> None:
    path = folder / f"{number:04}.json"
    if path.exists():
        return
    torch.set_num_threads(1)
    split, begun = Split(model), beginnings(number)
    split.n_used = split.n_expert  # all of them are the dense model
    tokenizer = Model(model, (), {"vocab_only": True})
    prompts = [
        tokenizer.tokenize(
            f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n{each.question}<|im_end|>\n"
            f"<|im_start|>assistant\n{each.story}"
        ).tolist()
        for each in begun
    ]
    heat = torch.full((PER_PART,), _HEAT)
    written = split.write(prompts, _LENGTH, heat, number, _PENALTY).tokens.tolist()
    stories = list[Story]()
    for each, prompt, tokens in zip(begun, prompts, written, strict=True):
        pieces = list[str]()
        for token in tokens[len(prompt) :]:
            if tokenizer.is_end(token):
                break
            pieces.append(tokenizer.piece(token, special=False).decode(errors="replace"))
        if story := ended(each.story + "".join(pieces)):
            stories.append(Story(each.question, story))
    tokenizer.close()
    path.with_suffix(".partial").write_text(json.dumps(stories))
    path.with_suffix(".partial").replace(path)
    print(f"stories: part {number}", flush=True)


def stories(folder: Path, workers: int, n_parts: int = N_PARTS, model: Path | None = None) -> list[Story]:
    """Return the stories of so many parts, which the split model at `model` writes into `folder`.

    Raise InputError if parts are missing and the model is too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, missing = model or split_model(), n_parts > len(list(folder.glob("????.json")))
    if missing and not model.is_file():
        raise InputError(f"{model} is missing: make it with `python -m tools.split_dense`")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exits the block, so that the pool ends too
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(_write_part, [(folder, model, number) for number in range(n_parts)], chunksize=1)
    parts = [json.loads((folder / f"{number:04}.json").read_text()) for number in range(n_parts)]
    return [Story(*each) for part in parts for each in part]
