"""Free device memory becomes slots, and suffices for all steps. A limit makes a large device a small one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.config.values import VramLimit
from spac.engine import Engine
from spac.errors import InputError, OutOfMemoryError

MIB = 1 << 20
PROMPT = list(range(5, 205)) * 2  # more tokens than a ubatch has


def memory():
    return next(device.memory for device in _core.devices() if device.name == "simulated")


def config(target: Path, **options):
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    defaults = {"device": "simulated", "threads": 1, "ctx": 768, "ubatch": 128, "sampling": sampling}
    return EngineConfig(target=target, **{**defaults, **options})


@pytest.fixture(autouse=True)
def unlimited():
    yield
    _core.set_memory_limit("simulated", 0)
    _core.set_simulated_device()


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_expert=12, n_ff_exp=128)


@pytest.fixture(scope="module")
def draft(tiny_model):
    return tiny_model("qwen3")


@pytest.fixture(scope="module")
def mtp(tiny_model):
    return tiny_model("glm4moe", n_layer=4, options={"mtp": 1})


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("8G", 8 << 30),
        ("8GiB", 8 << 30),
        ("8gb", 8 * 10**9),
        ("8192M", 8 << 30),
        (" 1.5 g ", 3 << 29),
        ("512 KiB", 512 << 10),
        ("50%", 500),
        (0.25, 250),
        (4096, 4096),
    ],
)
def test_limits_are_read_as_written(text, n_bytes):
    assert VramLimit.parse(text).of(1000) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "8", "much", "-1G", "0G", "0%", "101%", "8GG", 0, -5, 1.5, float("nan")]
)
def test_limits_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match="vram_limit"):
        EngineConfig(target="x.gguf", vram_limit=text)


def run(engine):
    """Evaluate a prompt of more than a ubatch, run steps and the longest verification. Return the text."""
    if engine.config.draft_types:
        engine.fix_draft_length(engine.config.longest_draft)
    return "".join(engine.generate(PROMPT, 24))


def attempt(settings):
    """Return the text and the number of slots, or the error and None where memory does not suffice. Assert
    that all memory is free again afterwards."""
    try:
        with Engine(settings) as engine:
            text = run(engine)
            assert not memory().limit or memory().used <= memory().peak <= memory().limit
            return text, engine.experts.slots.n_slots
    except OutOfMemoryError as error:
        return str(error), None
    finally:
        assert memory().used == 0


@pytest.mark.parametrize("kind", ["plain", "draft", "mtp", "stream"])
def test_what_fits_is_used_and_holds(target, draft, mtp, kind):
    options = {
        "plain": {},
        "draft": {"draft": draft, "draft_max": 12},
        "mtp": {"draft_type": "draft-mtp", "draft_max": 3},
        "stream": {"stream_batch": 16},
    }[kind]
    model = mtp if kind == "mtp" else target
    sizes = ("1M", "3200K", "3600K", "64M") if kind == "mtp" else ("1M", "4200K", "4800K", "64M")
    outcomes = [attempt(config(model, vram_limit=size, **options)) for size in sizes]
    refused = [text for text, n in outcomes if n is None]
    fits = [(text, n) for text, n in outcomes if n is not None]
    assert refused
    assert all("--vram-limit allows" in line and "\n" not in line for line in refused)
    assert len({text for text, _ in fits}) == 1  # the text does not depend on what is resident
    slots = [n for _, n in fits]
    assert slots == sorted(set(slots))
    assert slots[-1] == (15 if kind == "mtp" else 36)


def test_contexts_take_from_slots(target):
    small = attempt(config(target, vram_limit="4600K"))[1]
    large = attempt(config(target, vram_limit="4600K", ctx=1536))[1]
    assert small > large >= 0


@pytest.mark.parametrize(("megabytes", "fits"), [(1, None), (3, True)])
def test_a_device_that_is_full_says_what_is_needed(target, megabytes, fits):
    _core.set_simulated_device(memory_mb=megabytes)
    text, slots = attempt(config(target))
    if fits:
        assert 0 < slots < 36
    else:
        assert slots is None
        assert re.search(r"[\d.]+ MiB more are needed .* and [\d.]+ MiB of the 1\.0 MiB", text)


def test_a_limit_names_both_numbers(target):
    text, slots = attempt(config(target, vram_limit="1M"))
    assert slots is None
    needed, allowed = map(float, re.search(r"at least ([\d.]+) MiB .* allows ([\d.]+) MiB", text).groups())
    assert needed > allowed == 1.0


def test_a_fixed_number_of_slots_beyond_the_limit_says_what_fits(target):
    settings = config(target, vram_limit="4M", slots=36)
    text, slots = attempt(settings)
    assert slots is None
    fit = int(re.search(r"36 slots do not fit .* --vram-limit allows: (\d+) would", text)[1])
    assert 0 < fit < 36
    assert attempt(config(target, vram_limit="4M", slots=fit))[1] == fit
    assert attempt(config(target, vram_limit="4M", slots=fit + 1))[1] is None


def test_without_room_for_streaming_prompts_slots_take_it(target):
    """Two regions would leave no memory for slots. The prompt is split instead of streamed."""
    text, slots = attempt(config(target, vram_limit="3M", stream_batch=16))
    assert slots > 0
    assert text == attempt(config(target))[0]


def test_the_second_model_takes_what_is_left(target, draft):
    with Engine(config(target, vram_limit="9M", slots="50%")) as first:
        text, taken = run(first), memory().used
        with Engine(config(target, vram_limit="9M")) as second:
            assert first.experts.slots.n_slots == 18
            assert 18 < second.experts.slots.n_slots < 36
            assert taken < memory().used <= 9 * MIB
            assert run(second) == run(first) == text
        assert memory().used == taken
        with pytest.raises(OutOfMemoryError, match=r"allows 4\.0 MiB"):
            Engine(config(draft, vram_limit="4M"))
        assert memory().used == taken


def test_figures(target):
    with Engine(config(target, vram_limit="4M")) as engine:
        generation = engine.generate(PROMPT, 8)
        "".join(generation)
        stats = generation.stats
        assert stats.vram_limit == 4 * MIB
        assert stats.slot_bytes < stats.vram_bytes == memory().used <= 4 * MIB
        assert "of 4.19 MB allowed" in stats.table()
    with Engine(config(target, device="cpu", vram_limit="4M")) as engine:
        generation = engine.generate(PROMPT[:8], 2)
        "".join(generation)
        assert generation.stats.vram_bytes == 0
        assert generation.stats.vram_limit is None


def test_llama_fits_too(target):
    from spac import Llama

    options = {"device": "simulated", "n_ctx": 768, "n_batch": 128, "n_threads": 1, "verbose": False}
    with pytest.raises(OutOfMemoryError, match=r"at least .* allows 1\.0 MiB"):
        Llama(str(target), vram_limit="1M", **options)
    assert memory().used == 0
    llm = Llama(str(target), vram_limit="5M", slots="auto", stream_batch=16, **options)
    try:
        assert 0 < llm.engine.experts.slots.n_slots < 36
        made = memory().n_device_buffers
        tokens = llm.generate(PROMPT, temp=0.0)
        for _ in range(8):
            next(tokens)
        assert llm.stats.vram_limit == 5 * MIB
        assert llm.stats.slot_bytes < llm.stats.vram_bytes <= 5 * MIB
        assert llm.engine.experts.stats["blocks_streamed"] > 0
        assert memory().n_device_buffers - made <= 1  # the masks of ids need one
    finally:
        llm.close()
    assert memory().used == 0


# No allocation while the engine decodes


def buffers_of(engine, prompt, lengths):
    """Return the numbers of device buffers and of host buffers after each step of these draft lengths."""
    longest, left, found = engine.config.longest_draft, list(lengths), []

    def fix():
        if left and engine.config.draft_types:
            engine.fix_draft_length(min(left.pop(0), longest))

    def after_step(_step):
        if len(found) == 8:
            assert engine.experts.settle(10)
        found.append((memory().n_device_buffers, memory().n_host_buffers))
        fix()

    fix()
    engine.events.after_step.append(after_step)
    generation = engine.generate(prompt)
    while len(found) < len(lengths):
        next(generation, None)
    generation.cancel()
    engine.forget()  # waits for the last step
    engine.events.after_step.remove(after_step)
    return found[: len(lengths)]


@pytest.mark.parametrize("kind", ["plain", "draft", "mtp", "stream"])
def test_nothing_is_allocated_between_steps(target, draft, mtp, kind):
    options = {
        "plain": {"scheduler": "lru"},
        "draft": {"draft": draft, "draft_max": 12, "scheduler": "moe-spac"},
        "mtp": {"draft_type": "draft-mtp", "draft_max": 3, "scheduler": "lru"},
        "stream": {"draft": draft, "draft_max": 12, "stream_batch": 16},
    }[kind]
    model = mtp if kind == "mtp" else target
    with Engine(config(model, vram_limit="6M", slots="40%", **options)) as engine:
        longest = engine.config.longest_draft
        made = memory().n_device_buffers
        # The longest verification determines the buffers of every context.
        lengths = [*[longest] * 19, *[0, longest, 1, 2, 5, 3, longest, 0] * 3]
        first = buffers_of(engine, PROMPT, lengths)[8:]
        if kind != "mtp":  # common makes llama.cpp plan anew at every sequence
            assert first[0][0] - made <= 1  # the masks of ids need one
        assert len(set(first)) == 1
        assert len(set(buffers_of(engine, PROMPT[::-1], [longest, *[longest, 2] * 5]))) == 1
        assert engine.experts.stats["uploads"] > engine.experts.slots.n_slots  # plans have changed meanwhile
        assert (engine.experts.stats["blocks_streamed"] > 0) == (kind == "stream")
        engine.experts.attach_slots(3)
        assert memory().n_device_buffers > made  # the counter works
