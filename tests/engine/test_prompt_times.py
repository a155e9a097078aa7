"""The size of a prompt's graphs follows measured times, and comes near the fastest of the ways."""

from __future__ import annotations

from math import ceil
from random import Random
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest

from spac.engine.prompt_graphs import PromptGraphs
from spac.engine.prompt_times import PromptTimes, Way

SMALL = 512
PROMPTS = (128, 512, 1024, 3000, 4096, 8192, 16384)


class Machine:
    """A machine on which pieces of prompts take times by a formula.

    copy_s: seconds of a graph's copies. token_s, split_s: seconds of a token, streamed and split. large_s:
    seconds for each token and each token of its graph, which makes large graphs slow. divided: the time of a
    divided graph, by that of the faster of the other ways.
    """

    def __init__(self, copy_s, token_s, split_s, large_s=0.0, guessed_copy_s=None, divided=1.2):
        self.copy_s, self.token_s, self.split_s, self.large_s = copy_s, token_s, split_s, large_s
        self.divided = divided
        self.guess = copy_s if guessed_copy_s is None else guessed_copy_s

    def graph_s(self, streams, n_tokens, n_past):
        attention = 2e-9 * n_tokens * (n_past + n_tokens / 2) + self.large_s * n_tokens**2
        if not streams:
            return self.split_s * n_tokens + attention
        return self.copy_s / 20 + max(self.copy_s, self.token_s * n_tokens + attention)

    def piece_s(self, streams, size, n_tokens, n_past, divides=False):
        cuts = range(0, n_tokens, size)
        if divides:
            sides = [self.piece_s(streams, size, n_tokens, n_past) for streams in (False, True)]
            return self.divided * min(sides)
        return sum(self.graph_s(streams, min(size, n_tokens - i), n_past + i) for i in cuts)

    def old_s(self, n_tokens):
        """Return the seconds of a prompt in the better of the two old ways."""
        return min(self.piece_s(streams, SMALL, n_tokens, 0) for streams in (False, True))


class Streams(SimpleNamespace):
    is_fixed, share = False, 0.5
    streams = divides = False

    def use(self, *, streams, divides):
        self.streams, self.divides = streams, divides

    def split_s(self, n_tokens, resident):
        return self.token_s * n_tokens * (1 - resident)


class Graphs(PromptGraphs):
    _streams: Streams

    def __init__(self, machine):
        context = SimpleNamespace(graph_tokens=SMALL, batch_tokens=8192)
        device = SimpleNamespace(name="GPU0", shares_host_cores=False)
        streams = Streams(
            tokens=ceil(machine.guess / machine.split_s), graph_s=machine.guess, token_s=machine.split_s
        )
        super().__init__(context, [device], streams, [])
        self.machine = machine

        self.pieces = []

    def _that_fits(self):
        return self._most

    def read(self, n_tokens, disturbed=1.0):
        """Evaluate a prompt as a session does, and return its seconds."""
        n_past, total = 0, 0.0
        while n_past < n_tokens:
            size = self.choose(n_tokens - n_past, 0)
            piece = min(n_tokens - n_past, size if size > SMALL else 2048)
            streams, divides = self._streams.streams, self._streams.divides
            seconds = self.machine.piece_s(streams, size, piece, n_past, divides) * disturbed
            self.pieces.append((self.way.kind, size, piece))
            self._context.graph_tokens = max(self._context.graph_tokens, size)
            self.observe(piece, n_past, int(seconds * 1e9))
            n_past, total = n_past + piece, total + seconds
        return total


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    "machine",
    [
        Machine(0.64, 60e-6, 3e-3),  # the link takes most of the time
        Machine(0.1, 60e-6, 3e-3),
        Machine(0.03, 100e-6, 90e-6),  # the CPU is as fast
        Machine(0.0045, 100e-6, 120e-6),  # computing takes most of the time
        Machine(0.0045, 100e-6, 120e-6, large_s=4e-9),  # large graphs are slower
        Machine(0.1, 60e-6, 3e-3, guessed_copy_s=0.01),  # wrong guesses
        Machine(0.1, 60e-6, 3e-3, guessed_copy_s=1.0),
        Machine(0.06, 110e-6, 90e-6, guessed_copy_s=0.015),  # the split is faster, unlike the guess
    ],
)
def test_prompts_take_as_long_as_in_the_better_old_way_at_most(machine, noise):
    graphs, random = Graphs(machine), Random(1)
    ratios = {n_tokens: [] for n_tokens in PROMPTS}
    for _ in range(6 + 15):
        for n_tokens, found in ratios.items():
            disturbed = 1 + noise * abs(random.gauss())
            found.append(graphs.read(n_tokens, disturbed) / disturbed / machine.old_s(n_tokens))
    for n_tokens, found in ratios.items():
        assert median(found[6:]) <= 1.03, n_tokens
    total = sum(sum(found[6:]) * machine.old_s(n_tokens) for n_tokens, found in ratios.items())
    assert total <= 1.03 * 15 * sum(map(machine.old_s, PROMPTS))


def test_the_other_ways_are_tried_once():
    """They are measured, for their estimates are wrong, and not again soon if they are slow."""
    graphs = Graphs(Machine(0.06, 110e-6, 180e-6, guessed_copy_s=0.06, divided=2.0))
    for _ in range(20):
        graphs.read(512)
    ways = [kind for kind, _, _ in graphs.pieces[1:]]  # the first one touches new buffers
    assert sorted(ways[:2]) == [(False, False), (True, True)]
    assert ways[2:] == 17 * [(True, False)]


@pytest.mark.parametrize("n_tokens", [32, 64, 128, 256, 512, 1000])
def test_short_prompts_are_divided_where_that_is_faster(n_tokens):
    for factor in (0.6, 1.5, 12.0):
        graphs = Graphs(Machine(0.3, 60e-6, 1e-3, divided=factor))
        first = [graphs.read(n_tokens) for _ in range(8)]
        best = min(factor, 1.0) * graphs.machine.old_s(n_tokens)
        assert graphs.read(n_tokens) <= 1.03 * best
        if factor == 12.0:  # one trial of the worse way, and none after it
            assert sum(seconds > 5 * best for seconds in first) == 1


def test_each_size_of_a_division_is_tried():
    """Long prompts say little about short ones."""
    graphs = Graphs(Machine(0.3, 60e-6, 1e-3, divided=1.5))
    for _ in range(8):
        graphs.read(512)
    assert not graphs._streams.divides
    graphs.machine.divided = 0.5
    for _ in range(8):
        graphs.read(64)
    assert graphs._streams.divides


def test_where_the_link_takes_most_of_the_time_a_prompt_is_one_graph():
    graphs = Graphs(Machine(0.64, 60e-6, 3e-3))
    assert [graphs.choose(n, 0) for n in (1000, 5000, 8192)] == [1000, 5000, 8192]
    graphs.read(8192)
    assert graphs.read(8192) < 0.1 * graphs.machine.old_s(8192)


def test_a_disturbed_measurement_is_repeated():
    graphs = Graphs(Machine(0.3, 60e-6, 3e-3))
    graphs.read(8192)
    graphs.read(8192, disturbed=1.2)
    assert graphs.choose(8192, 0) == 8192


def test_times_of_other_slots_are_forgotten():
    graphs = Graphs(Machine(0.0045, 100e-6, 3e-3, large_s=4e-9))
    for _ in range(4):
        graphs.read(8192)
    assert graphs.choose(8192, 0) < 8192
    graphs._streams.share = 0.2
    graphs._streams.graph_s = 1.0
    assert graphs.choose(8192, 0) == 8192


def test_the_next_run_goes_on_with_the_best_way():
    """It does not try the slower ways again."""
    machine = Machine(0.06, 110e-6, 180e-6, guessed_copy_s=0.06, divided=2.0)
    first = Graphs(machine)
    for _ in range(6):
        first.read(512)
        first.read(4096)
    kept = first.state()
    then = Graphs(machine)
    then.restore(kept)
    for n_tokens in (512, 4096):
        assert then.read(n_tokens) <= 1.001 * machine.old_s(n_tokens)
    cold = Graphs(machine)
    assert sum(cold.read(512) for _ in range(4)) > 1.1 * sum(then.read(512) for _ in range(4))
    then._streams.share = 0.2
    then.choose(512, 0)
    assert not then.times.known


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 0.0]],
        [[1, 0, 0, 5, 1e-3]],
        [[1, 0, 512, 5, 0]],
        [[1, 0, 512, -5, 1e-3]],
        [[1, 0, 8, 5, np.inf]],
    ],
)
def test_damaged_times_are_refused(rows):
    times = PromptTimes()
    with pytest.raises(ValueError, match="no times"):
        times.restore(np.array(rows, np.float64))
    assert not times.known


def test_attention_is_shared_by_all_sizes():
    """The time of a late token is not taken for that of a size."""
    times = PromptTimes()
    for n_past in (0, 2048, 4096):
        times.observe(Way(True, SMALL), 2048, n_past, 2048 * (1e-4 + 3e-8 * (n_past + 1024)))
    times.observe(Way(True, 2048), 2048, 6144, 2048 * (1e-4 + 3e-8 * (6144 + 1024)))
    small, large = (times.per_token(Way(True, size), 5000, 0.0) for size in (SMALL, 2048))
    assert small == pytest.approx(1e-4 + 3e-8 * 5000)
    assert large == pytest.approx(small)
    assert times.per_token(Way(False, SMALL), 0, 0.0) is None
    assert times.largest == 2048
    assert [times.count(Way(True, size)) for size in (SMALL, 1024, 2048)] == [3, 0, 1]
