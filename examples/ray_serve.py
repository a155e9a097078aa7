"""Serve a model with several engines behind one address, on the machines of a Ray cluster.

Without arguments, it is the demo pair on this machine's CPU. Options of `spac serve` can follow:

python examples/ray_serve.py --replicas 2 --most-replicas 4 --gpus 1 --target MODEL --draft DRAFT --slots auto
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

from spac.errors import SpacError
from spac.serve.ray import application, run


def main() -> int:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--most-replicas", type=int)
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of each engine")
    parser.add_argument("--cpus", type=float, default=1, help="CPU cores of each engine")
    parser.add_argument("--port", type=int, default=8000)
    own, options = parser.parse_known_args()
    try:
        app = application(
            options, replicas=own.replicas, most_replicas=own.most_replicas, gpus=own.gpus, cpus=own.cpus
        )
        url = run(app, port=own.port)
    except SpacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Ray has set its own
    print(url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
