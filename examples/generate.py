"""Generate text with spac's own engine, and show the statistics.

python examples/generate.py [MODEL [DRAFT]]
"""

from __future__ import annotations

import sys

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine

PROMPT = "Once upon a time, there was a little dog who wanted to fly."


def main(model: str, draft: str | None) -> None:
    """Continue a prompt."""
    config = EngineConfig(
        target=model,
        draft=draft,  # None turns speculation off
        slots="25%",  # a quarter of all experts gets slots; "auto" takes as many as fit
        sampling=SamplingConfig(temp=0.7, seed=1),
    )
    with Engine(config) as engine:
        for note in engine.notes:  # a note says, for example, that no GPU was found
            print(f"note: {note}", file=sys.stderr)
        generation = engine.generate(PROMPT, max_tokens=64)
        print(PROMPT, end="")
        for piece in generation:  # the loop does the work, piece by piece
            print(piece, end="", flush=True)
        print()
    print(generation.stats.summary(), file=sys.stderr)


if __name__ == "__main__":
    paths = sys.argv[1:] or [str(demo.TARGET), str(demo.DRAFT)]
    main(paths[0], paths[1] if len(paths) > 1 else None)
