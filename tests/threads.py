"""Count the threads of this process."""

from __future__ import annotations

import os
import time


def n_threads() -> int:
    """Return the number of threads that the kernel lists, once it has stood for a while. The kernel still
    lists a thread for a moment after that was joined."""
    seen: list[int] = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        seen.append(len(os.listdir("/proc/self/task")))
        if len(seen) >= 10 and len(set(seen[-10:])) == 1:
            break
        time.sleep(0.02)
    return seen[-1]
