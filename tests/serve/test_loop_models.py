"""llama.cpp's loop with places for several clients, on models that spac's own loop runs for one at a time.

Tokens equal those of an unpatched library, which evaluates each prompt alone and each token in a batch of its
own.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine, slots
from spac.engine.server_loop import LoopOptions
from tests.engine.replay import Recording, replay_all
from tests.forked import reference
from tools.compare import Settings
from tools.models import DRAFT_FAMILIES, FAMILIES, write_adapter, write_model, write_projector
from tools.models.projector import png
from tools.models.variants import dense_sibling

GREEDY = SamplingConfig(temp=0.0, top_k=0, repeat_penalty=1.0)
SETTINGS = Settings(n_ctx=1024, n_batch=512, n_ubatch=512, n_threads=1, flash_attn=False)
OPTIONS: dict[str, Any] = {
    "ctx": 1024, "parallel": 4, "ubatch": 64, "state": "off", "threads": 1, "threads_batch": 1,
    "flash_attn": "off", "device": "simulated", "slots": "25%", "sampling": GREEDY,
}  # fmt: skip
PROMPTS = (
    "def fibonacci(n):\n", "class Stack:\n    def push(self, item):\n" * 4, "import os\n" * 9, "x = 1\n",
    "# A queue\nclass Queue:\n", "for i in range(9):\n    print(i)\n" * 2,
)  # fmt: skip
N = 16
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {}, "ngram": {"draft_type": "ngram-simple", "draft_length": 3},
    "simple": {"draft": "qwen3", "draft_length": 3},
}  # fmt: skip
Tokens = list[int]


def asked(engine: Engine, route: str, body: Any, status: int = 200) -> Any:
    """Return what llama.cpp's server answers."""
    made = engine.loop.begin(route, json.dumps(body).encode() if body is not None else b"")
    made.run()
    got = json.loads(made.body)
    assert made.status == status, got
    made.close()
    return got


def answer(engine: Engine, prompt: Any, n: int = N, **more: Any) -> Tokens:
    """Return the tokens that llama.cpp's server answers with."""
    body = {"prompt": prompt, "n_predict": n, "return_tokens": True, "ignore_eos": True, **more}
    return asked(engine, "completion", body)["tokens"]


def at_once(engine: Engine, prompts: list[Tokens]) -> list[Tokens]:
    """Return the answers to prompts that clients of their own send together."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda each: answer(engine, each), prompts))


@pytest.fixture(scope="module")
def alone(reference_lib, tmp_path_factory):
    """Return a function of what the unpatched library generates after each prompt."""
    known: dict[str, Tokens] = {}

    def of(path: Path, prompts: list[Tokens]) -> list[Tokens]:
        new = [each for each in prompts if f"{path} {each}" not in known]
        jobs = [Recording(str(path), each, [[]] * N) for each in new]
        made = replay_all(jobs, SETTINGS, reference_lib, tmp_path_factory.mktemp("replay"))
        known.update({f"{path} {each}": of["tokens"] for each, of in zip(new, made, strict=True)})
        return [known[f"{path} {prompt}"] for prompt in prompts]

    return of


def drafts_of(draft: str, tiny_model: Any, **more: Any) -> dict[str, Any]:
    """Return the options of a kind of drafts."""
    options = {**DRAFTS[draft], **more}
    return {**options, "draft": tiny_model("qwen3", n_layer=1)} if "draft" in options else options


def compare(target: Path, alone: Callable[..., list[Tokens]], **options: Any) -> None:
    """Ask the loop for several answers at once, for continued ones, and compare each with the one alone."""
    with Engine(EngineConfig(target=target, **{**OPTIONS, **options}), serves=LoopOptions("x")) as engine:
        assert engine.n_sequences == 4
        drafted: list[int] = []
        engine.events.after_step.append(lambda step: drafted.append(step.n_drafted))
        prompts = [engine.tokenize(each).tolist() for each in PROMPTS]
        expected = alone(target, prompts)
        assert at_once(engine, prompts) == expected
        longer = [[*each, *made[:7]] for each, made in zip(prompts, expected, strict=True)]
        assert at_once(engine, longer) == alone(target, longer)
        assert at_once(engine, prompts) == expected, "a conversation goes back"
        assert any(drafted) or not str(options.get("draft_type")).startswith("draft-")


@pytest.mark.parametrize(
    ("family", "draft"),
    [
        ("qwen3next", "none"), ("qwen3next", "simple"), ("qwen35moe", "ngram"), ("kimi-linear", "simple"),
        ("granitehybrid", "ngram"), ("nemotron_h_moe", "simple"), ("lfm2moe", "ngram"), ("lfm2moe", "simple"),
    ],
)  # fmt: skip
def test_states_of_several_clients(family, draft, tiny_model, alone):
    compare(tiny_model(family), alone, **drafts_of(draft, tiny_model))


@pytest.mark.parametrize(
    ("draft", "options"),
    [
        ("none", {}), ("simple", {}), ("ngram", {"swa_full": True}), ("simple", {"swa_full": True}),
        ("none", {"cache_ram": 0}), ("ngram", {"cache_ram": 0}),
    ],
)  # fmt: skip
def test_windows_of_several_clients(draft, options, tiny_model, alone):
    compare(tiny_model("gpt-oss"), alone, **drafts_of(draft, tiny_model, **options))


@pytest.mark.parametrize(("family", "n_layer"), [("glm4moe", 1), ("step35", 3)])
def test_mtp_of_several_clients(family, n_layer, tiny_model, alone):
    path = tiny_model(family, FAMILIES[family].default.with_prediction(n_layer))
    compare(path, alone, draft_type="draft-mtp", draft_length=3)


TURNS: dict[str, dict[str, Any]] = {
    "self": {"draft_type": "self"},
    "self, window": {"draft_type": "self", "swa_full": True},
    "self, moe-speq": {"draft_type": "self", "scheduler": "moe-speq"},
    "moe-speq": {"scheduler": "moe-speq"}, "sp-moe": {"scheduler": "sp-moe"},
    "moe-spac": {"scheduler": "moe-spac"},
}  # fmt: skip


@pytest.mark.parametrize("turns", TURNS)
def test_drafts_by_turns_of_several_clients(turns, tiny_model, alone, monkeypatch, tmp_path):
    """The draft model of sp-moe is dense, and that of moe-speq has the target's experts."""
    monkeypatch.setattr(slots, "QUANT", "q8_0")
    options, target = dict(TURNS[turns]), tiny_model("mixtral", n_expert=16, n_layer=4)
    if "draft_type" in options:
        target = tiny_model("gpt-oss") if "swa_full" in options else tiny_model("qwen3moe")
    else:
        moe = options["scheduler"] == "moe-speq"
        options["draft"] = target if moe else dense_sibling(target, tmp_path / "dense.gguf")
    for chosen in ("draft_length", "draft_max"):  # fixed, and by the governor
        compare(target, alone, **{chosen: 3}, **options)


@pytest.mark.parametrize("kind", DRAFT_FAMILIES)
def test_drafts_that_read_states_of_several_clients(kind, tiny_model, alone, tmp_path):
    draft = write_model(tmp_path / "draft.gguf", kind)
    draft_type = f"draft-{DRAFT_FAMILIES[kind].architecture}"
    compare(tiny_model("qwen3moe"), alone, draft=draft, draft_type=draft_type, draft_length=3)


# Images


PICTURES = (png(64, 96, 1), png(80, 48, 2))
SEES = "look <__media__> and at <__media__> here: def f("


@pytest.fixture(scope="module")
def projectors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projectors")
    gemma = write_projector(folder / "gemma.gguf", "gemma3", 64)
    qwen = write_projector(folder / "qwen.gguf", "qwen3vl", 64, n_deepstack=1)
    return {"qwen3vlmoe": qwen, "qwen3moe": gemma, "qwen3next": gemma}


def seen(engine: Engine, pictures: Sequence[bytes], text: str = SEES) -> Tokens:
    """Return what the loop answers to a prompt with pictures."""
    marker = _core.ServerLoop.media_marker()
    data = [base64.b64encode(each).decode() for each in pictures]
    prompt = {"prompt_string": text.replace("<__media__>", marker), "multimodal_data": data}
    return answer(engine, prompt, 12)


def expected_of_pictures(
    target: Path, projector: Path, orders: list[tuple[bytes, ...]], library: Path, folder: Path
) -> list[Tokens]:
    """Return what the unpatched library says of pictures in several orders."""
    jobs = []
    for i, order in enumerate(orders):
        paths = [folder / f"{i}-{j}.png" for j in range(len(order))]
        for path, data in zip(paths, order, strict=True):
            path.write_bytes(data)
        jobs.append([str(target), str(projector), SEES, [*map(str, paths)], 12])
    (folder / "jobs.json").write_text(json.dumps(jobs))
    words = ["jobs.json", "out.npz"]
    done = reference(library).run("tests.engine.reference_images", words, folder, os.environ, None)
    assert done.returncode == 0, done.stderr[-2000:]
    out = np.load(folder / "out.npz")
    return [out[f"tokens{i}"].tolist() for i in range(len(jobs))]


SEEN = [
    ("qwen3vlmoe", "simple", 1), ("qwen3vlmoe", "self", 1), ("qwen3vlmoe", "ngram", 4),
    ("qwen3vlmoe", "self", 4), ("qwen3moe", "simple", 4), ("qwen3moe", "self", 4),
    ("qwen3next", "none", 4), ("qwen3next", "simple", 4),
]  # fmt: skip


@pytest.mark.parametrize(("family", "draft", "n"), SEEN)
def test_images_of_clients(
    family, draft, n, tiny_model, projectors, reference_lib, tmp_path, alone, monkeypatch
):
    monkeypatch.setattr(slots, "QUANT", "q8_0")
    options = {"draft_type": "self", "draft_length": 3} if draft == "self" else drafts_of(draft, tiny_model)
    target = tiny_model(family, **({"options": {"deepstack": 1}} if family == "qwen3vlmoe" else {}))
    orders = [PICTURES, PICTURES[::-1], (PICTURES[0],) * 2, (PICTURES[1],) * 2][:n]
    expected = expected_of_pictures(target, projectors[family], orders, reference_lib, tmp_path)
    more = {**OPTIONS, "ubatch": 128, "parallel": n, **options}
    config = EngineConfig(target=target, mmproj=projectors[family], **more)
    with Engine(config, serves=LoopOptions("x")) as engine:
        assert engine.n_sequences == n
        text = engine.tokenize(PROMPTS[0]).tolist()
        for _ in range(2):
            with ThreadPoolExecutor(5) as pool:
                beside = pool.submit(answer, engine, text)
                assert list(pool.map(lambda each: seen(engine, each), orders)) == expected
                assert [beside.result()] == alone(target, [text])


REFUSED = {
    "http://127.0.0.1:9/a.png": "not fetched from http addresses",
    "https://example.com/a.png": "not fetched from https addresses",
    "file:///etc/hostname": "file:// URLs are not allowed",
    "data:image/png;base64,AAAA": "the image cannot be decoded",
    "data:image/png;base64," + base64.b64encode(b"RIFF\x24\0\0\0WEBPVP8 " + b"\0" * 24).decode(): "cannot be",
}


def test_addresses_and_bad_images_are_refused(tiny_model, projectors):
    config = EngineConfig(target=tiny_model("qwen3moe"), mmproj=projectors["qwen3moe"], **OPTIONS)
    with Engine(config, serves=LoopOptions("x")) as engine:
        for url, words in REFUSED.items():
            content = [{"type": "image_url", "image_url": {"url": url}}]
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
            assert words in asked(engine, "v1/chat/completions", body, 400)["error"]["message"]
        assert len(seen(engine, PICTURES)) == 12


def test_an_image_larger_than_a_batch_is_refused(tiny_model, tmp_path):
    """Gemma's attention within an image sees later places, so llama.cpp evaluates it at once or aborts."""
    projector = write_projector(tmp_path / "gemma.gguf", "gemma3", 64)
    config = EngineConfig(target=tiny_model("qwen3moe"), mmproj=projector, **{**OPTIONS, "ubatch": 3})
    with Engine(config, serves=LoopOptions("x")) as engine:
        image = base64.b64encode(PICTURES[0]).decode()
        prompt = {"prompt_string": _core.ServerLoop.media_marker(), "multimodal_data": [image]}
        refused = asked(engine, "completion", {"prompt": prompt}, 400)
        assert "evaluated at once" in refused["error"]["message"]
        assert answer(engine, [5, 6, 7], 4)


# Adapters


def test_adapters_of_several_clients(tiny_model, tmp_path, reference_lib, alone):
    target = tiny_model("qwen3moe")
    adapter = write_adapter(tmp_path / "adapter.gguf", target)
    config = EngineConfig(target=target, lora=((adapter, 0.7),), **OPTIONS)
    with Engine(config, serves=LoopOptions("x")) as engine:
        prompts = [engine.tokenize(each).tolist() for each in PROMPTS]
        job = [Recording(str(target), each, [[]] * N, lora=str(adapter), lora_scale=0.7) for each in prompts]
        adapted = [each["tokens"] for each in replay_all(job, SETTINGS, reference_lib, tmp_path)]
        plain = alone(target, prompts)
        assert adapted != plain
        assert at_once(engine, prompts) == adapted
        [shown] = asked(engine, "lora-adapters", None)
        assert (shown["path"], shown["scale"]) == (str(adapter), pytest.approx(0.7))
        scales = [[{"id": 0, "scale": 0.7 * (i % 2)}] for i in range(len(prompts))]
        with ThreadPoolExecutor(len(prompts)) as pool:
            mixed = list(pool.map(lambda each, lora: answer(engine, each, lora=lora), prompts, scales))
        assert mixed == [(plain, adapted)[i % 2][i] for i in range(len(prompts))]
        assert at_once(engine, prompts) == adapted, "a request that names none has the server's"
        asked(engine, "set-lora-adapters", [{"id": 0, "scale": 0}])
        assert at_once(engine, prompts) == plain
