"""Compare the bundled pair's logits on a device with those on the CPU, except for other kernels' rounding.

Every form of the split runs in a process of its own, so that a crash loses only that form. The forms are: no
experts resident, some, all; with the ids masks read by the device's kernels and without; with work queued
ahead of the CPU's and without; with layers that look ahead; with a prompt's experts streamed through the
device; with misses loaded within their layer; with slots that change their number between batches. The
unpatched library runs on the device too: with all experts resident, spac's logits must be its logits. LOGS
gets each form's whole output. Exit code 1: a form crashed, was not tried, or differs by more than `BOUND`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import processes
from bench.processes import ROOT

DEMO = ROOT / "python" / "spac" / "demo" / "target.gguf"
REFERENCE = ROOT / "python" / "spac" / "lib" / "reference"
BATCHES = (96, 9, 9, 4, 2, 1, 1, 1, 1)  # tokens evaluated at a time: a prompt, verifications, single tokens
BOUND = 5e-3
"""The allowed normalized mean square error of the logits: ten times what upstream's tests allow one matrix
product."""


@dataclass(frozen=True)
class Form:
    """One way to compute the same logits."""

    name: str
    slots: str = "0"
    masks: bool = False  # the device's kernels read the ids masks
    ahead: bool = False  # what follows the CPU's part of a layer is queued before that part is done
    lookahead: int = 0  # distance in layers from which experts are loaded while a step runs
    early: bool = False  # threads read rows early
    stream_batch: int = 0
    miss: str = "cpu"  # where misses are computed
    resized: str = ""  # the slots after every second batch, in turns with `slots`
    uses: str = ""  # the statistic that counts what the form is about
    on_cpu: bool = False
    unpatched: bool = False  # llama.cpp as published, with the whole model on the device
    parts: str = ""  # further words of SPAC_FORM
    upload_threads: int = 0  # threads that bring pageable experts of prompts to pinned memory
    settings: tuple[tuple[str, str], ...] = field(default=())  # environment variables

    def environment(self) -> dict[str, str]:
        """Return the variables that the form's process adds to this one's environment."""
        words = ["masks" if self.masks else "no-masks", "ahead" if self.ahead else "no-ahead", self.parts]
        return {"SPAC_FORM": ",".join(words), **dict(self.settings)}


NO_GRAPHS = (("GGML_CUDA_DISABLE_GRAPHS", "1"),)
FORMS = (
    Form("plain, on the CPU", on_cpu=True),
    Form("llama.cpp, on the device", unpatched=True),
    Form("split, 25 %, masks, ahead, looking ahead", "25%", masks=True, ahead=True, lookahead=1),
    Form("split, 25 %, masks, ahead", "25%", masks=True, ahead=True),
    Form("split, 25 %, masks, ahead, rows read early", "25%", masks=True, ahead=True, early=True,
         uses="early"),
    Form("split, 25 %, masks, prompt streamed", "25%", masks=True, ahead=True, stream_batch=32,
         uses="blocks_streamed"),
    Form("split, 25 %, masks, misses loaded", "25%", masks=True, miss="load", uses="misses_loaded"),
    Form("split, slots change, masks, ahead", "25%", masks=True, ahead=True, lookahead=1, resized="60%"),
    Form("split, all, masks", "100%", masks=True),
    Form("split, 25 %, masks", "25%", masks=True),
    Form("split, 25 %, looking ahead", "25%", lookahead=1),
    Form("split, 25 %, ahead", "25%", ahead=True),
    Form("split, 25 %", "25%"),
    Form("split, nothing resident"),
    Form("split, 25 %, masks, ahead, no graphs", "25%", masks=True, ahead=True, settings=NO_GRAPHS),
    Form("split, 25 %, masks, ahead, by copies", "25%", masks=True, ahead=True,
         parts="no-in-place"),
    Form("split, 25 %, masks, ahead, in place", "25%", masks=True, ahead=True, lookahead=1,
         parts="in-place"),
    Form("split, 25 %, in place", "25%", parts="in-place"),
    Form("split, 25 %, masks, ahead, not pinned", "25%", masks=True, ahead=True,
         parts="no-pinned"),
    Form("split, 25 %, masks, prompt streamed by threads", "25%", masks=True, stream_batch=32,
         parts="no-pinned", upload_threads=2, uses="stream_ring_bytes"),
    Form("split, 25 %, masks, ahead, loaded eagerly", "25%", masks=True, ahead=True,
         settings=(("CUDA_MODULE_LOADING", "EAGER"),)),
)  # fmt: skip


def tokens_of() -> list[int]:
    """Return the tokens that every form evaluates."""
    return np.random.default_rng(0).integers(0, 1000, sum(BATCHES)).tolist()  # type: ignore[no-any-return]


def compute(form: Form, device: str, threads: int = 0, target: Path | None = None) -> np.ndarray:
    """Return float32 [tokens, n_vocab]: the logits of every token. threads: 0: one per core."""
    import spac  # noqa: F401  # before llama_cpp: it chooses the library
    from bench.compare.ours import echo, logits, make_resident
    from spac import _core
    from spac.config import EngineConfig
    from spac.model.c_api import echo_log
    from spac.model.pair import ModelPair

    echo_log(echo)
    config = EngineConfig(
        target=target or DEMO, device="cpu" if form.on_cpu else device, slots=form.slots, ctx=512,
        draft_length=0, stream_batch=form.stream_batch, threads=threads,
    )  # fmt: skip
    pair = ModelPair(config, None)
    _core.set_upload_threads(form.upload_threads)
    try:
        make_resident(pair, form.slots)
        if pair.experts is not None:
            pair.experts.set_lookahead(form.lookahead)
            pair.experts.set_early_rows(form.early)
            pair.experts.set_stream_tokens(form.stream_batch)  # a new pair streams nothing
            if form.miss != "cpu":
                pair.experts.set_miss(form.miss, False)
        tokens, found, at = tokens_of(), [], 0
        for i, n in enumerate(BATCHES):
            if form.resized and i % 2:
                make_resident(pair, form.resized if i % 4 == 1 else form.slots)
            found.append(logits(pair, tokens[at : at + n], at))
            at += n
        if form.uses and pair.experts is not None and not pair.experts.stats[form.uses]:
            raise RuntimeError(f"the form was not tried: its {form.uses} is 0")
        return np.concatenate(found)
    finally:
        pair.close()
        _core.set_upload_threads(0)
        echo_log(None)


def compute_unpatched(device: str, threads: int, target: Path | None = None) -> np.ndarray:
    """Return the same logits from the unpatched library, which LLAMA_CPP_LIB_PATH names, with the whole model
    on the device."""
    from bench import unpatched

    unpatched.start()
    pool = unpatched.ThreadPool(threads or os.cpu_count() or 1)
    model = unpatched.Model(str(target or DEMO), pool, device=device, ctx=512, repack=False, offload=False)
    tokens, found, at = tokens_of(), [], 0
    for n in BATCHES:
        model.decode(tokens[at : at + n], at, logits="all")
        found.append(model.rows(n).copy())
        at += n
    model.close()
    return np.concatenate(found)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the normalized mean square error, infinite where a number is not finite."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    value = float(np.square(a - b).sum() / np.square(b - b.mean()).sum())
    return value if np.isfinite(value) else float("inf")


def compute_form(form: Form, args: argparse.Namespace, result: Path, deadline: float) -> dict[str, Any]:
    """Compute a form in a process of its own. Return its row."""
    begun = time.monotonic()
    name = "".join(c if c.isalnum() else "-" for c in form.name)
    words = [sys.executable, "-m", "bench", "smoke", result, "--device", args.device, "--form", form.name]
    words += ["--threads", args.threads, *(("--target", args.target) if args.target else ())]
    environment = processes.environment(REFERENCE if form.unpatched else None) | form.environment()
    log, seconds = (args.logs or result.parent) / f"smoke-{name}.txt", max(5.0, deadline - begun)
    ended = processes.run(words, log, min(args.longest, seconds), environment)
    fault = ended.fault or ("" if result.is_file() else "no result")
    return {**asdict(form), "fault": fault, "seconds": round(time.monotonic() - begun, 1)}


def rows_of(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return a row for every form, some computed at the same time: how far it is from the CPU's logits, and
    if it equals the unpatched library's to the bit."""
    deadline = time.monotonic() + args.seconds
    forms = [form for form in FORMS if not form.unpatched or (REFERENCE / "libllama.so").is_file()]
    if args.forms:
        forms = [form for form in forms if form.on_cpu or any(t in form.name for t in args.forms)]
    paths = {form.name: folder / f"{at}.npy" for at, form in enumerate(forms)}
    with ThreadPoolExecutor(args.at_once) as pool:
        rows = list(pool.map(lambda form: compute_form(form, args, paths[form.name], deadline), forms))
    arrays = {row["name"]: np.load(paths[row["name"]]) for row in rows if not row["fault"]}
    wanted, device = arrays.get("plain, on the CPU"), arrays.get("llama.cpp, on the device")
    for row in rows:
        found = arrays.get(row["name"])
        if found is not None and wanted is not None:
            row["error"] = error(found, wanted)
            row["other_tokens"] = int((found.argmax(1) != wanted.argmax(1)).sum())
        if found is not None and device is not None and not row["on_cpu"]:
            row["unequal_rows"] = int((found != device).any(1).sum())
    return rows


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    if "error" not in row:
        return f"{row['name']:<40} {row['fault'] or 'nothing to compare with'}"
    verdict = "" if row["error"] <= BOUND else "  TOO FAR OFF"
    equal = f", {row['unequal_rows']} rows not llama.cpp's bits" if "unequal_rows" in row else ""
    return (
        f"{row['name']:<40} error {row['error']:.2e}, {row['other_tokens']} of {sum(BATCHES)} tokens differ"
        f"{equal}, {row['seconds']:.1f} s{verdict}"
    )


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("result", type=Path, metavar="RESULT.json")
    add("--target", type=Path, help="another model than the bundled one")
    add("--device", default="CUDA0")
    add("--seconds", type=float, default=90)
    add("--longest", type=float, default=40, help="seconds of one form, because a device may wait for ever")
    add("--logs", type=Path, help="where each form's output goes")
    add("--at-once", type=int, default=1, help="forms that run at the same time")
    add("--threads", type=int, default=0, help="of one form; 0: one per core")
    add("--forms", nargs="+", metavar="TEXT", help="only forms whose names contain one of these")
    add("--form", help=argparse.SUPPRESS)  # for the processes that this one starts


def run(args: argparse.Namespace) -> int:
    """Return the exit code."""
    if args.form:
        (form,) = (form for form in FORMS if form.name == args.form)
        if form.unpatched:
            np.save(args.result, compute_unpatched(args.device, args.threads, args.target))
        else:
            np.save(args.result, compute(form, args.device, args.threads, args.target))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(args, Path(folder))
    print("\n".join(map(line, rows)), flush=True)
    args.result.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["fault"] or not row.get("error", BOUND + 1) <= BOUND for row in rows))
