"""A thread that shows the scheduler a verified step while the next step computes."""

from __future__ import annotations

from spac.engine.draft_follower import DraftFollower, T


class StepFollower(DraftFollower[T]):
    """Calls a function on a thread with every value that it is shown, one after the other.

    `show` and `close` are for the thread that decodes, and the others for any thread.
    """

    thread_name = "spac-step-follower"

    def show(self, value: T) -> None:
        """Leave a value, after the function has returned from the one before.

        Raise what an earlier call of the function raised.
        """
        self.wait()
        super().show(value)

    def wait(self) -> None:
        """Wait until the function has returned from the last value. Raise what it raised, once."""
        self.drain()
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def drain(self) -> None:
        """Wait until the function has returned from the last value."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (self._next is None and not self._busy))
