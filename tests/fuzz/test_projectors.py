"""Damaged projectors, and models whose positions do not fit images, give a text or one line of error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.driver import NO_NUMBERS, Worker, budget, check
from tests.fuzz.mutations import Edit, Seed, damaged, number
from tools.models import write_projector
from tools.models.projector import png

pytestmark = pytest.mark.nightly

KINDS = ("qwen3vl", "gemma3")
OPTIONS = ["--prompt", "x", "--max-tokens", "2", "--ctx", "256", "--threads", "1", "--slots", "4"]


@pytest.fixture(scope="module")
def files(tiny_model, tmp_path_factory):
    """Return the model and the projector of each kind, and under "image" a picture."""
    folder = tmp_path_factory.mktemp("projectors")
    (folder / "image.png").write_bytes(png(64, 96, 1))
    models = {
        "qwen3vl": tiny_model("qwen3vlmoe", options={"deepstack": 1}), "gemma3": tiny_model("qwen3moe")
    }  # fmt: skip
    made = {
        kind: (models[kind], write_projector(folder / kind, kind, 64, n_deepstack=int(kind == "qwen3vl")))
        for kind in KINDS
    }
    return {**made, "image": (folder / "image.png", folder)}


def run(worker: Worker, target: Path, projector: Path, image: Path) -> int:
    """Return the exit code of a run with an image."""
    arguments = ["--target", str(target), "--mmproj", str(projector), "--image", str(image), *OPTIONS]
    answer = worker(arguments)
    if answer.code == 1 and answer.err.endswith(NO_NUMBERS):
        return 1
    check(answer, arguments)
    return answer.code


def changed(data: st.DataObject, seed: Seed, key: bytes) -> bytes:
    """Return the file with other numbers behind the keys that have `key` in them."""
    content = seed.content
    places = [(at, n) for at, n in seed.numbers if key in content[max(0, at - 60) : at]]
    made: list[Edit] = []
    for _ in range(data.draw(st.sampled_from([1, 1, 2]))):
        at, size = data.draw(st.sampled_from(places))
        made.append((at, data.draw(number(size))))
    return damaged(seed, made, None)


@budget(70)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_damaged_projectors(data, kind, worker, files, tmp_path):
    target, projector = files[kind]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(changed(data, Seed.read(projector), b"clip."))
    run(worker, target, path, files["image"][0])


@budget(30)
@given(data=st.data())
def test_damaged_positions(data, worker, files, tmp_path):
    target, projector = files["qwen3vl"]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(changed(data, Seed.read(target), b"rope.dimension_sections"))
    run(worker, path, projector, files["image"][0])


def test_the_good_files_run(worker, files):
    for kind in KINDS:
        assert run(worker, files[kind][0], files[kind][1], files["image"][0]) == 0
