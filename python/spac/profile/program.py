"""The program that measures costs: `python -m spac.profile --target model.gguf --draft draft.gguf`.

It prints the costs of computing and copying to stdout, as a table or with --json as one line. It keeps them
for engines, which correct them while they run. Later runs show the kept costs without measuring, unless
--refresh is given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from spac.cli.options import Parser, add_engine, read_config
from spac.cli.program import Talk, add_talk, guarded, models
from spac.config.context import ContextConfig
from spac.costs import Costs
from spac.errors import InputError
from spac.stats.words import counted

if TYPE_CHECKING:
    from spac._core import LayerInfo
    from spac.costs.cache import Key

_OPTIONS = (
    "target", "draft", "draft_type", "draft_length", "draft_max", "slots", "vram_limit", "device", "threads",
    "ctx", *(item.name for item in fields(ContextConfig)),
)  # fmt: skip


def make_parser() -> Parser:
    """Return the parser of `spac.profile`'s options."""
    parser = Parser(
        prog="spac profile",
        description="Measure what experts, transfers, drafts and verifications cost on this machine. "
        "Without --target, the bundled demo pair is measured.",
        like_llama_cpp=True,
    )
    add_engine(parser, _OPTIONS)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    output.add_argument("--refresh", action="store_true", help="measure, even if costs are known already")
    add_talk(output)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _profile(options))


def _profile(options: argparse.Namespace) -> int:
    target, draft, _ = models(options)
    config = replace(read_config(options, target, draft), governor="fixed")
    # These imports load the library. Bad options are reported before that.
    from spac.costs import cache
    from spac.engine import Engine
    from spac.model.pair import ModelPair
    from spac.profile.measure import Forced, Measurement

    talk = Talk(options.quiet)
    pair = ModelPair(config, talk.progress, all_rows=False)
    with Engine(replace(config, scheduler=Forced(), state="off"), pair=pair) as engine:
        talk.end_progress()
        talk.show_notes(engine)
        measurement = Measurement(engine, pair, lambda what: talk.show(f"measuring {what}"))
        key, layers = cache.Key.of(pair), measurement.layers
        known = None if options.refresh else cache.load(key)
        if known is not None and len(known.experts) != len({layer.pool for layer in layers}):
            known = None  # The file was split in another way.
        costs = known if known is not None else measurement.measure()
        talk.end_progress()
    if known is not None:
        talk.note("known from an earlier run; --refresh measures anew")
    else:
        try:
            cache.store(key, costs)
        except InputError as error:
            talk.note(f"the costs are not kept: {error}")
    if options.json:
        about = {"key": asdict(key), "measured_now": known is None}
        print(json.dumps({**json.loads(costs.to_json()), **about}))
    else:
        print("\n".join(_table(costs, key, layers, drafts=bool(config.draft_types))))
    return 0


def _table(costs: Costs, key: Key, layers: Sequence[LayerInfo], *, drafts: bool) -> Iterator[str]:
    yield f"{key.cpu}, {counted(key.threads, 'thread')}; {key.device}"
    for pool, expert in enumerate(costs.experts):
        mine = [layer for layer in layers if layer.pool == pool]
        yield f"\nexperts of {mine[0].expert_bytes / 1e3:,.0f} kB ({counted(len(mine), 'layer')})"
        link = mine[0].expert_bytes / 1e9
        yield from map(
            _row,
            (
                ("CPU, a distinct expert", expert.cpu_expert_s, ""),
                ("CPU, an activation (token, expert)", expert.cpu_pair_s, "beside that"),
                ("CPU, a layer", expert.cpu_layer_s, "beside both"),
                (
                    "CPU, an activation, if that were all",
                    expert.cpu_pair_only_s,
                    "as MoE-SpAc's Eq. 7 has it",
                ),
                ("device, a distinct expert", expert.device_expert_s, ""),
                ("transfer", expert.upload_s, _rate(link, expert.upload_s)),
                ("transfer while both compute", expert.upload_busy_s, _rate(link, expert.upload_busy_s)),
            ),
        )
    yield "\nhand-off"
    if costs.hand_off_s is None:
        yield "  not measured: there was no room for a whole layer"
    else:
        yield _row(("a layer that is not all resident", costs.hand_off_s, "beside its experts"))
    if drafts:
        yield "\ndraft"
        yield _row(("a draft", costs.draft_base_s, ""))
        yield _row(("a token of it", costs.draft_token_s, "beside that"))
    yield "\nverification and sampling" + " " * 17 + "in all   without experts"
    for n, (verify, dense) in enumerate(zip(costs.verify_s, costs.dense_s, strict=True), 1):
        yield f"  {n:3} {'token ' if n == 1 else 'tokens'}{verify * 1e6:34,.1f} µs{dense * 1e6:12,.1f} µs"


def _row(row: tuple[str, float, str]) -> str:
    name, seconds, remark = row
    return f"  {name:<37}{seconds * 1e6:10,.2f} µs  {remark}".rstrip()


def _rate(gigabytes: float, seconds: float) -> str:
    return f"{gigabytes / seconds:.1f} GB/s" if seconds > 0 else ""
