"""Measure what the slots cost and gain around a prompt: `python -m bench.prompt_slots tail` or `lent`.

`tail` runs the bundled target on the simulated device. Streamed prompts of different texts come one after the
other, each followed by some tokens, with and without experts that stay as they stream past
(`Experts.set_tail_stays`). The figures are the bytes over the link during the prompt, and behind it until the
plan is carried out.

`lent` runs a small random model with many experts and little memory beside the slots. Long prompts are read
with and without slots that lend their memory, whatever the engine expects of it. The figures are bytes and
seconds until the prompt is read, and until all slots are filled again.

Both ways take turns. Times are medians, and ratios are those of the medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.prompt_stream import Prompts, model_of
from bench.provenance import about
from spac import _core, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine, prompt_graphs

ROOT = Path(__file__).parent.parent
TEXTS = ("README.md", "python/spac/models.py", "docs/cpu.md", "csrc/core/mask.h")
"""Files whose beginnings are the prompts of `tail`."""
SHARES, STEPS = (0.17, 0.4), 24
SIZES = (2048, 4096, 8192)
LINK = 1.0
FREE = 8 << 20
"""The bytes of device memory beside the slots with `lent`."""
_PATIENCE_S = 60.0


def tail_run(share: float, n_tokens: int, *, stays: bool) -> dict[str, Any]:
    """Return the sums over all prompts but the first, the first one's figures, and the tokens."""
    config = EngineConfig(
        target=demo.TARGET, device="simulated", slots=share, threads=1, ctx=2048, state="off",
        stream_batch=32, sampling=SamplingConfig(temp=0.0, ignore_eos=True),
    )  # fmt: skip
    rows, tokens = list[dict[str, float]](), list[int]()
    with Engine(config) as engine:
        experts = engine.experts
        assert experts is not None
        _core.set_simulated_device(upload_gb_s=LINK)
        session = engine.session_with(temp=0.0, ignore_eos=True)
        experts.set_tail_stays(stays)
        for name in TEXTS * 2:
            prompt = engine.tokenize((ROOT / name).read_text() * 3)[:n_tokens]
            session.reset()
            experts.settle(_PATIENCE_S)
            before, started = experts.stats, perf_counter()
            session.prefill(prompt)
            seconds = perf_counter() - started
            experts.settle(_PATIENCE_S)
            after = experts.stats
            names = {"stream_bytes": "streamed", "upload_bytes": "behind", "tail_experts": "stayed"}
            row = {own: float(after[key] - before[key]) for key, own in names.items()}
            rows.append(row | {"prompt_s": seconds})
            tokens += [int(token) for _ in range(STEPS) for token in session.step().tokens]
    later = {name: sum(row[name] for row in rows[1:]) for name in rows[0]}
    later["prompt_s"] = median(row["prompt_s"] for row in rows[1:])
    return {"first": rows[0], "later": later, "tokens": tokens}


def tail(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each share of slots and length of prompts."""
    for share in SHARES:
        for n_tokens in (64, 400):
            runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
            for turn in range(repeats):
                for stays in (True, False) if turn % 2 else (False, True):
                    runs[stays].append(tail_run(share, n_tokens, stays=stays))
            texts = {tuple(run.pop("tokens")) for found in runs.values() for run in found}
            if len(texts) != 1:
                raise SystemExit("the texts differ")
            row: dict[str, Any] = {"slots": share, "n_tokens": n_tokens, "repeats": repeats}
            for which in ("first", "later"):
                each = {
                    stays: {name: median(run[which][name] for run in found) for name in found[0][which]}
                    for stays, found in runs.items()
                }
                row[which] = {"without": each[False], "with": each[True]}
                row[which]["behind_ratio"] = each[True]["behind"] / each[False]["behind"]
                link = {stays: figures["behind"] + figures["streamed"] for stays, figures in each.items()}
                row[which]["link_ratio"] = link[True] / link[False]
                row[which]["time_ratio"] = each[True]["prompt_s"] / each[False]["prompt_s"]
            yield row


def lent(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each length of prompts."""
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            target=model_of(Path(folder)), device="simulated", threads=1, ctx=max(SIZES) + 256, slots="50%",
            vram_limit="2G", stream_batch=64, scheduler="static", governor="fixed", state="off",
        )  # fmt: skip
        with Engine(config) as engine:
            experts, graphs = engine.experts, engine.graphs
            assert experts is not None
            assert graphs is not None
            _core.set_simulated_device(upload_gb_s=LINK)
            experts.settle(_PATIENCE_S)
            graphs.measure()
            memory = next(each.memory for each in _core.devices() if each.name == "simulated")
            _core.set_memory_limit("simulated", memory.used + FREE)
            prompts, lender = Prompts(engine), graphs._slots
            prompt_graphs._LENT_GAIN = float("inf")
            prompts.read(SIZES[0], None)
            for n_tokens in SIZES:
                runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
                for turn in range(repeats + 1):
                    for lends in (True, False) if turn % 2 else (False, True):
                        graphs._slots = lender if lends else None
                        experts.settle(_PATIENCE_S)
                        before, started = experts.stats, perf_counter()
                        read = prompts.read(n_tokens, None)
                        graphs.take_back()
                        ready = perf_counter() - started
                        experts.settle(_PATIENCE_S)
                        after = experts.stats
                        if turn:  # the first one touches new buffers
                            runs[lends].append({
                                "ready_s": ready, "filled_s": perf_counter() - started,
                                "streamed": float(after["stream_bytes"] - before["stream_bytes"]),
                                "uploaded": float(after["upload_bytes"] - before["upload_bytes"]),
                                "graph_tokens": read["graph_tokens"],
                            })  # fmt: skip
                graphs._slots = lender
                each = {
                    lends: {name: median(run[name] for run in found) for name in found[0]}
                    for lends, found in runs.items()
                }
                ratios = {
                    f"{name}_ratio": each[True][name] / each[False][name] for name in ("ready_s", "filled_s")
                }
                link = {lends: figures["streamed"] + figures["uploaded"] for lends, figures in each.items()}
                ratios["link_ratio"] = link[True] / link[False]
                yield {
                    "n_tokens": n_tokens,
                    "repeats": repeats,
                    "without": each[False],
                    "with": each[True],
                } | ratios


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a line for each row, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("tail", "lent"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    given = parser.parse_args(arguments)
    rows = []
    for row in (tail if given.what == "tail" else lent)(given.repeats):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if given.out is not None:
        given.out.write_text(
            json.dumps(about("bench.prompt_slots", arguments) | {"rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
