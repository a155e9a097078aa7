"""`spac run --image` shows images to a model with a projector."""

from __future__ import annotations

import pytest

from tools.models import write_projector
from tools.models.projector import png


@pytest.fixture
def files(target, tmp_path):
    image = tmp_path / "a.png"
    image.write_bytes(png(40, 40))
    return target, write_projector(tmp_path / "mmproj.gguf", "gemma3", 64), image


def test_an_image_and_a_prompt(spac_run, files):
    target, mmproj, image = files
    words = ("-m", target, "--device", "cpu", "--temp", 0, "-n", 8, "--stats", "none", "-q")
    plain = spac_run(*words, "-p", "x y")
    seen = spac_run(*words, "--mmproj", mmproj, "--image", image, "-p", "x <__media__> y")
    assert (seen.code, seen.err) == (0, "")
    assert seen.out not in ("", "\n", plain.out)
