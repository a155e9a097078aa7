"""Prompts with images give the text and the logits of an unpatched library, bit for bit."""

import ctypes
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spac.engine import Engine
from spac.errors import InputError, OutOfMemoryError
from tests.engine.conftest import config, memory
from tests.forked import reference
from tools.models import write_projector
from tools.models.projector import png

PROMPT = "look <__media__> and at <__media__> here: def f("
IMAGES = (png(64, 96, 1), png(80, 48, 2))
N = 12
MODELS = ("qwen3vlmoe", "qwen3moe", "qwen3next")
"""M-RoPE and embeddings for inner layers; no causal mask within an image; a recurrent memory."""


@pytest.fixture(scope="module")
def files(tiny_model, tmp_path_factory):
    """Return the model and the projector of each of MODELS."""
    folder = tmp_path_factory.mktemp("projectors")
    qwen = write_projector(folder / "qwen.gguf", "qwen3vl", 64, n_deepstack=1)
    gemma = write_projector(folder / "gemma.gguf", "gemma3", 64)
    vlmoe = tiny_model("qwen3vlmoe", options={"deepstack": 1})
    return {
        "qwen3vlmoe": (vlmoe, qwen), "qwen3moe": (tiny_model("qwen3moe"), gemma),
        "qwen3next": (tiny_model("qwen3next"), gemma),
    }  # fmt: skip


@pytest.fixture(scope="module")
def expected(files, reference_lib, tmp_path_factory):
    """Return what the unpatched library says: its tokens and its last logits, by model."""
    folder = tmp_path_factory.mktemp("reference")
    pictures = [folder / f"{i}.png" for i in range(len(IMAGES))]
    for path, data in zip(pictures, IMAGES, strict=True):
        path.write_bytes(data)
    jobs = [[*map(str, files[name]), PROMPT, [*map(str, pictures)], N] for name in MODELS]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    words = ["jobs.json", "out.npz"]
    done = reference(reference_lib).run("tests.engine.reference_images", words, folder, os.environ, None)
    assert done.returncode == 0, done.stderr[-2000:]
    out = np.load(folder / "out.npz")
    return {name: (out[f"tokens{i}"].tolist(), out[f"logits{i}"]) for i, name in enumerate(MODELS)}


def opened(files, **options):
    target, mmproj = files
    return Engine(config(target, mmproj=mmproj, **options))


def said(engine, prompt, images, n=N):
    return answered(engine, prompt, images, n).tokens


def answered(engine, prompt, images, n=N):
    generation = engine.generate(engine.image_prompt(prompt, images), n)
    "".join(generation)
    return generation


def last_logits(engine, n):
    import llama_cpp  # late: spac chooses its library

    context = ctypes.c_void_p(engine._pair.target_context.pointer)
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (n,))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_text_and_logits_as_without_spac(name, files, expected):
    tokens, logits = expected[name]
    with opened(files[name]) as engine:
        assert said(engine, PROMPT, IMAGES) == tokens
        np.testing.assert_array_equal(last_logits(engine, logits.size), logits)
        again = answered(engine, PROMPT, IMAGES)
        assert again.tokens == tokens
        assert again.stats.cached_tokens > 0


def test_the_same_text_beside_others(files, expected):
    """Three read the prompt with images, and one a text, in three places."""
    name = "qwen3next"
    tokens, _ = expected[name]
    with opened(files[name]) as engine:
        text = "".join(engine.generate("def f(", N))
    with opened(files[name], parallel=3) as engine, ThreadPoolExecutor(4) as pool:
        plain = pool.submit(lambda: "".join(engine.generate("def f(", N)))
        found = list(pool.map(lambda _: said(engine, PROMPT, IMAGES), range(3)))
        assert found == [tokens] * 3
        assert plain.result() == text
        broken = engine.image_prompt(b"\xff ".decode("utf-8", "surrogateescape") + PROMPT, IMAGES)
        assert len(list(engine.generate(broken, 2))) == 2, "a text may have any bytes"


@pytest.mark.parametrize(
    "drafts", [{"draft_type": "ngram-simple"}, {"draft": "qwen3", "draft_length": 4}], ids=["ngram", "draft"]
)
def test_drafts_beside_images(files, tiny_model, drafts):
    """A draft does not see the images, so it drafts from the text alone."""
    if "draft" in drafts:
        drafts = {**drafts, "draft": tiny_model("qwen3", n_layer=1)}
    text = "def f(x): return f(x) def f(x): return "
    with opened(files["qwen3vlmoe"]) as engine:
        expected = [said(engine, PROMPT, IMAGES), "".join(engine.generate(text, N))]
    with opened(files["qwen3vlmoe"], **drafts) as engine:
        assert "".join(engine.generate(text, N)) == expected[1]
        assert said(engine, PROMPT, IMAGES) == expected[0]
        assert engine._last_stats().drafted_tokens > 0 or "draft" not in drafts
        again = engine.generate(text, N)
        assert "".join(again) == expected[1]
        assert again.stats.drafted_tokens > 0 or "draft" not in drafts


@pytest.mark.parametrize("name", ["qwen3vlmoe", "qwen3next"])
def test_a_conversation_goes_on_and_comes_back(name, files):
    """A conversation that memory or the prompt cache holds gives the text of one from the start."""
    longer = (PROMPT + " more <__media__> x", (*IMAGES, IMAGES[0]))
    more = [(PROMPT, IMAGES), longer, ("def g(n): return n\n" * 8, ())]
    expected = []
    for prompt, images in more:
        with opened(files[name]) as engine:
            expected.append(said(engine, prompt, images))
    with opened(files[name], cache_ram=64) as engine:
        for turn in (0, 1, 2, 1, 0, 2):
            prompt, images = more[turn]
            found = answered(engine, prompt, images)
            assert found.tokens == expected[turn], turn
        assert found.stats.cached_tokens > 0


def test_the_device_has_the_projector(files):
    def used(**options):
        with opened(files["qwen3vlmoe"], slots=0, **options):
            return memory().used, memory().peak

    (with_it, _), (without, most) = used(), used(mmproj_offload=False)
    assert with_it >= without + files["qwen3vlmoe"][1].stat().st_size
    with pytest.raises(OutOfMemoryError, match=r"qwen\.gguf: .*; --no-mmproj-offload"):
        used(vram_limit=most + 100_000)
    assert used(vram_limit=most + 100_000, mmproj_offload=False) == (without, most)
    _, most = used(ctx=4608)
    with opened(files["qwen3vlmoe"], slots=0, ctx=4608, vram_limit=most + 100_000) as engine:
        with pytest.raises(OutOfMemoryError, match="the image needs more memory than simulated has left"):
            said(engine, "x", [png(1024, 1024)])
        assert "".join(engine.generate("x", 2))


def test_projectors_that_cannot_be_used(files, tmp_path, tiny_model):
    target, good = files["qwen3moe"]
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(good.read_bytes()[:-1000])
    other = write_projector(tmp_path / "other.gguf", "gemma3", 96)
    for mmproj, words in (
        (target, "this is no projector; give the model's mmproj file"),
        (tmp_path / "no.gguf", "there is no such file"),
        (cut, "the file is cut off"),
        (other, "this projector is another model's: the model's embeddings have 64 numbers"),
    ):
        with pytest.raises(InputError, match=words) as refused:
            opened((target, mmproj))
        assert "\n" not in str(refused.value)


def test_images_that_cannot_be_read(files):
    short = IMAGES[0][:2000]
    with opened(files["qwen3moe"], ctx=256, batch=3, ubatch=3) as engine:
        for text, images, words in (
            ("x", [b"no image"], "image cannot be decoded"),
            ("x", [IMAGES[0], b""], "image 2 cannot be decoded"),
            ("x", [short], "image cannot be decoded"),
            ("<__media__> x", IMAGES, "the prompt has 1 places"),
            ("x", IMAGES, "image of 4 tokens is evaluated at once by this model, and a batch has 3"),
            ("x", [IMAGES[0]] * 70, "the context holds 256"),
        ):
            with pytest.raises(InputError, match=words) as refused:
                said(engine, text, images)
            assert "\n" not in str(refused.value)
        assert "".join(engine.generate("x", 2))
    with (
        Engine(config(files["qwen3moe"][0], device="cpu")) as engine,
        pytest.raises(InputError, match="sees no images: start with --mmproj"),
    ):
        engine.image_prompt("x", IMAGES)
