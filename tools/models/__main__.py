"""Write a tiny random-weight GGUF: ``python -m tools.models FAMILY FILE [sizes]``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from tools.models import FAMILIES, write_model

_SIZES = {
    "layers": "n_layer",
    "experts": "n_expert",
    "used": "n_used",
    "embd": "n_embd",
    "heads": "n_head",
    "heads-kv": "n_head_kv",
    "head-dim": "head_dim",
    "ff": "n_ff",
    "ff-exp": "n_ff_exp",
    "shared": "n_shared",
    "dense": "n_dense",
    "groups": "n_group",
    "groups-used": "n_group_used",
    "swa": "n_swa",
    "ctx": "n_ctx",
    "vocab": "n_vocab",
    "seed": "seed",
}


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    return (key, value) if sign else ("*", key)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code: 0, or 2 when the shape is impossible."""
    parser = argparse.ArgumentParser(prog="python -m tools.models", description=__doc__)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("file")
    for option, name in _SIZES.items():
        parser.add_argument(f"--{option}", dest=name, type=int, metavar="N")
    parser.add_argument(
        "--type",
        action="append",
        default=[],
        type=_pair,
        metavar="[PATTERN=]TYPE",
        help="e.g. '*_exps=Q4_0'; repeat",
    )
    parser.add_argument("--set", action="append", default=[], type=_pair, metavar="OPTION=N", dest="options")
    args = parser.parse_args(argv)
    shape = FAMILIES[args.family].default
    sizes = {name: value for name in _SIZES.values() if (value := getattr(args, name)) is not None}
    shape = replace(
        shape,
        **sizes,
        types={**shape.types, **dict(args.type)},
        options={**shape.options, **{key: int(value) for key, value in args.options}},
    )
    try:
        path = write_model(args.file, args.family, shape)
    except ValueError as error:
        print(f"{args.file}: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {args.family}, {path.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
