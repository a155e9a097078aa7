"""Make a Mixture-of-Experts model of a dense chat model, by default of SmolLM2-135M-Instruct from PyPI.

    python -m tools.split_dense [OUT.gguf] [--model FILE.gguf] [--experts 20] [--shared 4] [--used 8]
                                [--text FILE...] [--mtp FOLDER] [--threads N]

README.md describes the model and how well it speaks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from spac.errors import InputError, SpacError
from spac.machine.cpu import physical_cores
from tools.split_dense.activations import record
from tools.split_dense.fetch import fetch, split_model
from tools.split_dense.groups import divide
from tools.split_dense.text import MODULES, QUESTIONS, chat_prompt, docstrings, pieces
from tools.split_dense.writer import Dense, write

_PIECES = 32


def split(args: argparse.Namespace) -> None:
    """Write the split model. Raise InputError for impossible numbers and for files that do not serve."""
    if not 1 <= args.used <= args.experts:
        raise InputError(f"--used: {args.used} of {args.experts} experts cannot be used")
    if args.shared < 1:
        raise InputError("--shared: at least 1, since the architecture has shared experts")
    if args.threads < 1:
        raise InputError("--threads: at least 1")
    if args.mtp:
        try:
            from tools.split_dense import prediction
        except ImportError as error:
            raise InputError(f"--mtp trains with torch: pip install torch==2.13.0 ({error})") from None
    dense = Dense(args.model or fetch())
    size = dense.size(args.experts, args.shared)
    written = "\n\n".join(
        [path.read_text(errors="replace") for path in args.text] if args.text else docstrings(MODULES)
    )
    texts = [*map(chat_prompt, QUESTIONS), *pieces(written, _PIECES)]
    recorder = record(dense.path, dense.n_layer, texts, args.threads)
    groups = [
        divide(*recorder.layer(layer, dense.width), dense.down(layer), args.experts, args.shared)
        for layer in range(dense.n_layer)
    ]
    write(dense, args.out, groups, args.used, args.shared)
    share = (args.used + args.shared) / (args.experts + args.shared)
    print(
        f"{args.out}: {dense.n_layer} layers of {args.experts} experts with {size} neurons, "
        f"{args.used} used, {args.shared} shared: {share:.0%} of the neurons"
    )
    if args.mtp:
        first, second, third = prediction.learn(args.out, args.mtp, args.threads)
        print(f"the prediction layer foretells {first:.0%}, {second:.0%} and {third:.0%} of the next tokens")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.split_dense",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "out", type=Path, nargs="?", default=split_model(), help="default: spac's cache folder"
    )
    parser.add_argument("--model", type=Path, help="a dense GGUF of the architecture llama")
    parser.add_argument("--experts", type=int, default=20, help="experts of a layer")
    parser.add_argument(
        "--shared", type=int, default=4, help="as many neurons that every token uses, in experts"
    )
    parser.add_argument("--used", type=int, default=8, help="experts that a token uses")
    parser.add_argument(
        "--text", type=Path, nargs="+", default=[], help="text to read in place of docstrings"
    )
    parser.add_argument(
        "--mtp", type=Path, metavar="FOLDER", help="train a prediction layer, with its texts and states there"
    )
    parser.add_argument("--threads", type=int, default=physical_cores())
    try:
        split(parser.parse_args(argv))
    except (SpacError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
