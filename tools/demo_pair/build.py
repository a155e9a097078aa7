"""Make the demo pair from nothing: stories, tokenizer, target, draft, GGUF files, figures of the model card.

Every part continues where it stopped, so the command may be interrupted and repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from spac.errors import SpacError

from . import data, export, figures, train

_ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
              "MALLOC_TOP_PAD_": str(1 << 28)}  # fmt: skip
"""Keeps large tensors on the heap; otherwise a third of the time goes into page faults."""


def main() -> None:
    """Run all parts in order."""
    if any(name not in os.environ for name in _ALLOCATOR):  # glibc reads them only at the start
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**_ALLOCATOR, **os.environ})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"), help="checkpoints and streams")
    parser.add_argument("--models", type=Path, default=Path("python/spac/demo"), help="where the files go")
    parser.add_argument("--target-tokens", type=float, default=train.TARGET_TOKENS)
    parser.add_argument("--draft-tokens", type=float, default=train.DRAFT_TOKENS)
    parser.add_argument("--own-tokens", type=float, default=train.OWN_TOKENS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    try:
        data.prepare(args.work, args.workers)
    except (SpacError, data.CorpusError) as error:
        raise SystemExit(str(error)) from error
    train.train_target(args.work, int(args.target_tokens), args.workers)
    train.train_draft(args.work, int(args.draft_tokens), int(args.own_tokens), args.workers)
    export.export_pair(args.work, args.models)
    torch.set_num_threads(args.workers)
    figures.fill_card(args.work, args.models)


if __name__ == "__main__":
    main()
