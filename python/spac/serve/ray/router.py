"""Ray Serve's choice of a replica for each request: the one that has read most of its prompt."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import RequestRouter

from spac.serve.ray.prefixes import Prefixes

PATIENCE = 2
"""Requests that a replica may have more than the least busy one, and still get its conversations.

Reading a prompt again costs about as much as waiting for one or two answers.
"""


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ranks replicas by the beginnings that they have read, and by their requests.

    A request's first argument has its prompt as `text`. The router counts the requests of its own deployment
    handle; Ray Serve itself asks a replica whether it takes one more.
    """

    def initialize_state(self, **_: Any) -> None:
        """Begin without known prompts."""
        self._prefixes: Prefixes[Any] = Prefixes()
        self._running: Counter[Any] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return ranks of replicas, the preferred one first."""
        by_load = sorted(candidate_replicas, key=lambda each: self._running[each.replica_id])
        if not by_load:
            return []
        least = self._running[by_load[0].replica_id]
        near = {each.replica_id for each in by_load if self._running[each.replica_id] <= least + PATIENCE}
        text = pending_request.args[0].text if pending_request is not None and pending_request.args else ""
        known = self._prefixes.find(text, near)
        return [[each] for each in sorted(by_load, key=lambda each: each.replica_id != known)]

    def on_send_request(self, replica_id: Any) -> None:
        """Count a request that is sent to the replica."""
        super().on_send_request(replica_id)
        self._running[replica_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Count the request as done, however it ended."""
        super().on_request_completed(replica_id, internal_request_id)
        self._running[replica_id] = max(0, self._running[replica_id] - 1)

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Remember what the replica reads now."""
        self._prefixes.add(pending_request.args[0].text, replica_id)

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Forget a replica's requests."""
        super().on_replica_actor_died(replica_id)
        self._running.pop(replica_id, None)
