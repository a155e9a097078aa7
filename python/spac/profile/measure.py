"""The measurement of a model pair's costs on this machine, with the graphs that an engine runs.

The graphs are llama.cpp's own, split as in use. Plans set which experts are resident. The CPU's experts are
timed in every layer, while the device computes the others. The device cannot be timed by itself. When all of
a layer's experts are resident, a batch takes longer by the device's experts, and shorter by the CPU's experts
and by the hand-off. The part that grows with the number of distinct experts is the device's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from spac import _core
from spac.costs import Costs
from spac.costs.in_use import spares_hand_offs
from spac.engine import Engine
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Int32Array
from spac.model.c_api import TokenArray
from spac.model.pair import ModelPair
from spac.profile.probe import Probe
from spac.profile.timed import (
    Timed,
    cpu_times,
    device_time,
    expert_costs,
    hand_off_time,
    line,
)
from spac.scheduler import Event, Plan, Scheduler, View

_BEFORE = 192  # tokens in the context while batches are timed
_ROUNDS, _LEAST_ROUNDS = 24, 3
_MODE_S = 0.5  # seconds of rounds for each set of residents
_SHARES = (0.3, 0.6)  # shares of experts that are resident at random while the CPU is timed
_SETTLE_S = 120.0
_MARGIN = 1 << 28  # bytes of a real device's memory that stay free
_COPIES, _COPY_ROUNDS = 48, 5
_DRAFTS = 4  # steps of every draft length
_TEXTS = 2  # batches of every size that continue the text

TEXT = """The mill stood where the river bends, and for three hundred years it had ground the valley's
corn. When the last miller died, his daughter came back from the city with a box of books and no idea what a
millstone weighs. "You could sell it," said the notary. She looked at the wheel, green with moss, and shook
her head.

def moving_average(values, width):
    \"\"\"The mean of every `width` neighbours.\"\"\"
    total, means = 0.0, []
    for i, value in enumerate(values):
        total += value
        if i >= width:
            total -= values[i - width]
        if i >= width - 1:
            means.append(total / width)
    return means

In 1896 the bridge carried 1,200 carts a day; by 1923 there were 310 lorries as well. If a lorry weighs 4.5
tonnes and a cart 0.8, how much did the bridge bear in an hour? First add up the weights, then divide by the
hours of daylight. The engineers took twelve hours and doubled the answer, to be on the safe side.
"""


class Forced(Scheduler):
    """A scheduler that plans nothing; the measurement decides which experts are resident."""

    name = "forced"
    events = frozenset({Event.START})

    def on(self, event: Event, view: View) -> Plan | None:
        """Return a plan that asks for no expert."""
        return Plan.nothing(view.n_layer, view.n_expert)


class Measurement:
    """A measurement on one engine, which does nothing else meanwhile; its slots are empty afterwards."""

    def __init__(
        self, engine: Engine, pair: ModelPair, announce: Callable[[str], object] = lambda _: None
    ) -> None:
        """Make the batches that are measured.

        `engine` runs on this pair with `Forced`. `announce` is called with the name of the next measurement.
        Raise InputError if the pair runs without split experts.
        """
        if pair.experts is None:
            raise InputError(
                f"{pair.target.path.name} runs without the split here: there is nothing to measure"
            )
        self._engine, self._pair, self._experts, self._announce = engine, pair, pair.experts, announce
        self.layers = pair.experts.layers
        """The layers of the target's experts."""
        self._pool = np.array([layer.pool for layer in self.layers], np.int32)
        counts = np.array([layer.n_expert for layer in self.layers], np.int32)
        self._exists: BoolArray = np.arange(pair.experts.n_expert)[None, :] < counts[:, None]
        self._n_tokens = engine.config.longest_draft + 1
        self._text = np.tile(pair.target.tokenize(TEXT), 3)
        room = pair.target_context.size - self._n_tokens
        self._before = self._text[: min(_BEFORE, room)]
        self._batches = self._make_batches()
        self._n_slots = self._experts.slots.n_slots
        self._hand_offs: list[float] = []

    def measure(self) -> Costs:
        """Return all costs; raise SpacError when the model cannot be evaluated."""
        guess = Costs.guessed(self.layers, self._n_tokens)
        with Probe(self._pair.target_context, self._experts, self._before) as self._probe:
            self._experts.take_demand()
            self._announce("steps with nothing resident")
            without = self._timed(np.zeros_like(self._exists))
            demand = self._experts.take_demand()[0]
            self._announce("steps with what is used most resident")
            used = self._timed(self._hottest(demand))
            self._n_slots = self._slots_to_use()
            rows = [*without, *used]
            for share in _SHARES:
                self._announce(f"steps with {share:.0%} resident")
                rows += self._timed(self._random(share))
            self._announce("the device and the link")
            experts = tuple(
                expert_costs(
                    guess.experts[pool],
                    cpu_times(rows, self._pool == pool),
                    self._device_time(pool, without),
                    self._upload_times(pool),
                )
                for pool in range(len(guess.experts))
            )
        self._announce("drafts")
        drafts = self._drafts()
        sampling = median(step.sample_ns for step in drafts) * 1e-9
        base, token = line([(step.n_drafted, step.draft_ns * 1e-9) for step in drafts if step.n_drafted])
        verify = [sampling + median(each.seconds for each in some) for some in self._of_text(used)]
        dense = [
            sampling + median(max(0.0, each.seconds - float(each.host_s.sum())) for each in some)
            for some in self._of_text(without)
        ]
        hand_off = None
        if self._hand_offs and spares_hand_offs(self._pair):
            hand_off = median(self._hand_offs)
        return Costs(experts, base, token, tuple(verify), tuple(map(min, dense, verify)), hand_off)

    # Batches

    def _make_batches(self) -> list[TokenArray]:
        """Return the batches of every size.

        For each size, `_TEXTS` batches continue the text, one repeats a token, and one has random tokens.
        """
        rng, batches = np.random.default_rng(1), []
        for n in range(1, self._n_tokens + 1):
            starts = rng.integers(0, max(1, len(self._text) - n), _TEXTS)
            batches += [self._text[start : start + n] for start in starts]
            batches += [np.repeat(self._text[n], n), rng.choice(self._text, n)]
        return batches

    def _of_text(self, timed: list[Timed]) -> Iterator[list[Timed]]:
        """Yield for every size the batches that continue the text."""
        for first in range(0, len(timed), _TEXTS + 2):
            yield timed[first : first + _TEXTS]

    def _timed(self, residents: BoolArray) -> list[Timed]:
        """Return all batches, timed with these residents (bool [L, N]) and no others."""
        self._experts.attach_slots(self._n_slots)
        self._want(residents)
        timed = [Timed(tokens) for tokens in self._batches]
        for some in self._of_text(timed):
            self._probe.decode(some[0].tokens)  # This builds the graph of this size.
        start = time.monotonic()
        for done in range(_ROUNDS):
            if done >= _LEAST_ROUNDS and time.monotonic() - start > _MODE_S:
                break
            for each in timed:
                each.decodes.append(self._probe.decode(each.tokens))
        return timed

    def _drafts(self) -> list[_core.Step]:
        """Return steps of the engine's session, with drafts of all lengths."""
        session = self._engine.session_with(seed=1, ignore_eos=True)
        session.prefill(self._before)
        steps = []
        longest = session.draft_max if self._engine.config.draft_types else 0
        for n in [longest] + _DRAFTS * list(range(longest + 1)):
            if session.n_past + longest + 2 >= session.n_ctx:
                session.prefill(self._before)
            session.set_draft_length(n)
            steps.append(session.step())
        return steps[1:]  # In the first one, the draft model evaluates the prompt.

    # Residents

    def _want(self, residents: BoolArray) -> None:
        """Make these experts resident as far as there are slots; others stay in slots that are left over."""
        self._experts.submit(residents.astype(np.int32), np.ones(len(residents), np.int32))
        self._experts.settle(_SETTLE_S)

    def _hottest(self, demand: Int32Array) -> BoolArray:
        """Return the experts with the highest demand, as many as there are slots, as bool [L, N]."""
        hottest = np.zeros_like(self._exists)
        for pool, n_slots in enumerate(self._experts.pool_slots):
            score = np.where(self._exists & (self._pool == pool)[:, None], demand, -1)
            chosen = np.argsort(-score, axis=None, kind="stable")[:n_slots]
            hottest.flat[chosen] = score.flat[chosen] >= 0
        return hottest

    def _random(self, share: float) -> BoolArray:
        """Return a random choice of this share of the experts, as bool [L, N]."""
        return np.asarray(self._exists & (np.random.default_rng(2).random(self._exists.shape) < share))

    def _slots_to_use(self) -> int:
        """Return the number of slots that fit; an engine takes fewer in the host's memory."""
        device = self._engine.device
        margin = 0 if device is None or device.shares_host_memory else _MARGIN
        return min(int(self._exists.sum()), max(1, self._experts.slots_that_fit(margin)))

    def _device_time(self, pool: int, without: list[Timed]) -> float | None:
        """Return the seconds of a distinct expert on the device, or None if they cannot be measured.

        As many layers of the pool as fit are resident as a whole. The hand-off's time is kept too.
        """
        left, whole = self._experts.pool_slots[pool], np.zeros(len(self.layers), np.bool_)
        for i, layer in enumerate(self.layers):
            if layer.pool == pool and layer.n_expert <= left:
                whole[i], left = True, left - layer.n_expert
        if not whole.any():
            return None
        timed = self._timed(self._exists & whole[:, None])
        found = device_time(without, timed, whole)
        if found is not None:
            self._hand_offs.append(hand_off_time(without, timed, whole, found))
        return found

    # Transfers

    def _upload_times(self, pool: int) -> tuple[float, float] | None:
        """Return the seconds of an expert's upload: alone, and while device and CPU compute.

        Return None where there is no room.
        """
        mine = np.flatnonzero(self._exists & (self._pool == pool)[:, None])
        few = -(-_COPIES * int(self._exists.sum()) // len(mine))
        self._experts.attach_slots(min(self._n_slots, few, int(self._exists.sum()) // 2))
        size = min(self._experts.pool_slots[pool], len(mine) // 2)
        if size == 0:
            return None
        sets = [np.zeros(self._exists.size, np.bool_) for _ in range(2)]
        for each, chosen in zip(sets, (mine[:size], mine[-size:]), strict=True):
            each[chosen] = True
        alone = self._swaps(sets)
        stop = threading.Event()
        busy = threading.Thread(target=self._compute, args=(stop,), name="spac-profile")
        busy.start()
        try:
            return alone, self._swaps(sets)
        finally:
            stop.set()
            busy.join()

    def _swaps(self, sets: list[BoolArray]) -> float:
        """Return the seconds of an expert's upload while one set replaces the other, several times."""
        times = []
        for i in range(_COPY_ROUNDS + 1):
            before = self._experts.stats
            self._want(sets[i % 2].reshape(self._exists.shape))
            now = self._experts.stats
            if now["uploads"] > before["uploads"]:
                times.append((now["upload_ns"] - before["upload_ns"]) / (now["uploads"] - before["uploads"]))
        return median(times[1:]) * 1e-9 if len(times) > 1 else 0.0

    def _compute(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._probe.decode(self._batches[-1])
