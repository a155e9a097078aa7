"""Check that `--vram-limit` holds on this card, and measure what the driver takes beside it.

    python -m bench.gpu_suite.limit RESULT.json --target FILE --draft FILE [--device CUDA0] [--limit 10%]
                                    [--prompt 1024] [--tokens 64]

spac keeps to the limit by its own account of its buffers. The card reports more: the memory of the driver,
its kernels and cuBLAS is in no account. Exit code 1: spac's own account is beyond the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.compare.vram import VramMeter
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine.device_memory import size


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return bytes: the limit, spac's account at the end, and the card's additional memory in use at its
    peak."""
    config = EngineConfig(
        target=args.target, draft=args.draft, device=args.device, vram_limit=args.limit, slots="auto",
        ctx=args.prompt + args.tokens + 64, state="off",
        sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
    )  # fmt: skip
    with VramMeter(args.device) as meter, Engine(config) as engine:
        generation = engine.generate(list(range(5, 5 + args.prompt)), args.tokens)
        for _ in generation:
            pass
        stats = generation.stats
    return {
        "limit": stats.vram_limit, "account": stats.vram_bytes, "card": meter.used, "slots": stats.slots,
        "tokens": stats.generated_tokens, "tokens_per_second": stats.tokens_per_second or 0.0,
    }  # fmt: skip


def line(found: dict[str, Any]) -> str:
    """Return the result in words."""
    card = "not measured" if found["card"] is None else size(found["card"])
    return (
        f"--vram-limit of {size(found['limit'])}: spac's account {size(found['account'])}, "
        f"the card's {card}; {found['slots']} slots, {found['tokens_per_second']:.1f} tok/s"
    )


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("result", type=Path)
    add("--target", type=Path, required=True)
    add("--draft", type=Path)
    add("--device", default="CUDA0")
    add("--limit", default="10%", help="as --vram-limit")
    add("--prompt", type=int, default=1024, help="tokens")
    add("--tokens", type=int, default=64)
    args = parser.parse_args()
    found = measure(args)
    args.result.write_text(json.dumps(found) + "\n")
    print(line(found))
    return 0 if found["account"] <= found["limit"] else 1


if __name__ == "__main__":
    sys.exit(main())
