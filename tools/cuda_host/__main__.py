"""Run a CUDA build of spac on the pretend card and print what it calls, per MoE layer of a decode step.

python -m tools.cuda_host --build FOLDER [--out FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.cuda_host.build import BuildError, package_of
from tools.cuda_host.jobs import Job, JobError, Result, run

COLUMNS = {
    "launches": ("kernel",),
    "graphs": ("graph_launch",),
    "captures": ("graph_capture",),
    "to host": ("copy_to_host",),
    "to device": ("copy_to_device",),
    "pageable": ("pageable_to_host", "pageable_to_device"),
    "events": ("event_record", "event_wait"),
    "values": ("write_value", "wait_value"),
    "host waits": ("event_synchronize", "pageable_to_host"),
    "stream syncs": ("stream_synchronize",),
}
TOTALS = ("device_alloc", "device_free", "host_alloc", "host_free")
QUARTER = {"slots": "25%", "scheduler": "static", "lookahead": 3}
ALL = QUARTER | {"slots": "100%"}
JOBS = {
    "no draft, 25 % resident, compact": Job(options=QUARTER, masked=False),
    "no draft, 25 % resident": Job(options=QUARTER, ahead=False),
    "no draft, 25 % resident, ahead": Job(options=QUARTER),
    "no draft, all resident": Job(options=ALL),
    "length 4, 25 % resident": Job(options=QUARTER, draft_length=4, tokens=80, ahead=False),
    "length 4, 25 % resident, ahead": Job(options=QUARTER, draft_length=4, tokens=80),
    "length 4, all resident": Job(options=ALL, draft_length=4, tokens=80),
    "length 4, 25 % moving, ahead": Job(options=QUARTER | {"scheduler": "lru"}, draft_length=4, tokens=80),
    "changing lengths, 25 % resident, ahead": Job(
        options=QUARTER, draft_length=4, changing_length=True, tokens=200
    ),
}


def marks(calls: dict[str, int]) -> tuple[bool, int, int]:
    """Return the key that orders streams. Of those that compute, the target's signals the host most, or
    copies most where nothing signals the host."""
    computes = calls.get("graph_launch", 0) + calls.get("kernel", 0) > 0
    return computes, calls.get("write_value", 0) + calls.get("event_record", 0), calls.get("copy_to_host", 0)


def rows(result: Result, steps: int = 8) -> list[str]:
    """Return the columns' figures: calls per MoE layer of the last steps, on the stream that runs the
    layers."""
    last = result.steps[-steps:]
    stream = max(last[-1].streams, key=lambda s: marks(last[-1].streams[s]) if int(s) > 1 else (False, -1, 0))
    n = len(last) * result.n_layers
    found = []
    for kinds in COLUMNS.values():
        host = "event_synchronize" in kinds  # counted without a stream
        sums = (step[k] if host else step.streams.get(stream, {}).get(k, 0) for step in last for k in kinds)
        found.append(f"{sum(sums) / n:.2f}")
    found.append(str(sum(step[kind] for step in last for kind in TOTALS)))
    return [*found, str(len(result.misuse))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = "up-to-date build folder of spac with CUDA (cmake -G Ninja), or an earlier --out"
    parser.add_argument("--build", type=Path, required=True, help=what)
    parser.add_argument(
        "--out", type=Path, help="where the package is kept, for PYTHONPATH (default: nowhere)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            package = package_of(args.build, args.out or Path(temporary))
            print("| " + " | ".join(["per MoE layer", *COLUMNS, "allocations", "misuse"]) + " |")
            print("| --- |" + " ---: |" * (len(COLUMNS) + 2))
            for name, job in JOBS.items():
                result = run(job, package)
                print("| " + " | ".join([name, *rows(result)]) + " |", flush=True)
                for text in result.misuse:
                    print(f"misuse: {text}", file=sys.stderr)
        except (BuildError, JobError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
