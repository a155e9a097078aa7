"""How many threads this process has."""

from __future__ import annotations

import os
import time


def n_threads() -> int:
    """As the kernel lists them, once the number has stood for a while: it still lists a thread for a moment
    after that was joined."""
    seen: list[int] = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        seen.append(len(os.listdir("/proc/self/task")))
        if len(seen) >= 10 and len(set(seen[-10:])) == 1:
            break
        time.sleep(0.02)
    return seen[-1]
