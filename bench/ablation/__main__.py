"""Compare MoE-SpAc with its ablations and its rivals: the paper's Table 4 and Fig. 5 on this machine.

    python -m bench.ablation run FOLDER --prompts FOLDER [--number 4] [--skip 10] [--tokens 64] [--seeds 1 2]
    python -m bench.ablation vary FOLDER --prompts FOLDER [--sets NAME ...]
    python -m bench.ablation table FOLDER [--out FILE] [--plot FILE]

`run` generates with every system in turn, prompt by prompt, on the simulated device (17 % slots, 8 drafted
tokens). It keeps the figures of every generation. `vary` does the same with fewer systems for other cache
shares, draft lengths and caps K. Both continue where they were stopped. The prompts start with the eleventh
of each set, because the first ten were used to choose the defaults. `table` sums the results up beside
Belady's bound on the recorded demand.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.ablation.live import FULL, OURS, SYSTEMS, Pair, Rows, Setting, read_prompts, run_set
from bench.ablation.page import draw, page, varied_demand
from spac.errors import SpacError

DEMO = Path(__file__).resolve().parents[2] / "python" / "spac" / "demo"
VARIED = {name: SYSTEMS[name] for name in (FULL, OURS, "logistic", "lru", "static")}
SHARES = ("5%", "10%", "17%", "25%", "50%")
LENGTHS = (32, 128, 256)
CAPS = (1, 2, 4, 8, 16)


def run(args: argparse.Namespace) -> None:
    rows = Rows(args.folder / "runs.jsonl")
    for path in sorted(args.prompts.glob("*.jsonl")):
        prompts = read_prompts(path, args.skip, args.number)
        setting = Setting(tokens=args.tokens, threads=args.threads)
        systems = SYSTEMS | {name: name for name in args.follow}
        run_set(rows, path.stem, prompts, args.pair, setting, systems, args.seeds, args.folder)
        print(f"{path.stem}: {len(prompts)} prompts, {len(systems)} systems", flush=True)


def vary(args: argparse.Namespace) -> None:
    rows = Rows(args.folder / "varied.jsonl")
    caps = {f"K = {cap}": f"{SYSTEMS[FULL]},levels={cap}" for cap in CAPS}
    varied_demand(args.folder).mkdir(exist_ok=True)
    base = Setting(threads=args.threads, tokens=args.tokens)
    cases = [(replace(base, slots=share), VARIED) for share in SHARES]
    cases += [(replace(base, tokens=tokens), VARIED) for tokens in LENGTHS]
    cases += [(base, caps)]
    for name in args.sets:
        prompts = read_prompts(args.prompts / f"{name}.jsonl", args.skip, args.number)
        for setting, systems in cases:
            run_set(rows, name, prompts, args.pair, setting, systems, args.seeds, varied_demand(args.folder))
        print(f"{name}: done", flush=True)


def table(args: argparse.Namespace) -> None:
    runs, varied = Rows(args.folder / "runs.jsonl").rows, Rows(args.folder / "varied.jsonl").rows
    if not runs:
        raise SystemExit(f"{args.folder} has no runs: `run` first")
    text = page(runs, varied, args.folder)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    if args.plot:
        draw(runs, varied, args.folder, args.plot)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(required=True)
    for name, action in (("run", run), ("vary", vary)):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("--prompts", type=Path, required=True, help="folder of .jsonl files, a set each")
        command.add_argument("--target", type=Path, default=DEMO / "target.gguf")
        command.add_argument("--draft", type=Path, default=DEMO / "draft.gguf")
        command.add_argument("--number", type=int, default=4, help="prompts of each set")
        command.add_argument(
            "--skip", type=int, default=10, help="prompts of each set to leave out at its beginning"
        )
        command.add_argument("--tokens", type=int, default=64)
        command.add_argument("--seeds", type=int, nargs="+", default=(1, 2))
        command.add_argument("--threads", type=int, default=1)
        command.add_argument(
            "--follow", nargs="+", default=(), choices=("sp-moe", "moe-speq"),
            help="run: these systems too, which follow the draft; it has to fit them",
        )  # fmt: skip
        command.add_argument("--sets", nargs="+", default=("mmlu_pro", "humaneval", "cnn_dm"))
        command.set_defaults(action=action)
    command = commands.add_parser("table")
    command.add_argument("folder", type=Path)
    command.add_argument("--out", type=Path)
    command.add_argument("--plot", type=Path, help="an .svg or .png; needs matplotlib")
    command.set_defaults(action=table)
    args = parser.parse_args()
    if "target" in args:
        args.pair = Pair(args.target, args.draft)
    try:
        args.action(args)
    except SpacError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
