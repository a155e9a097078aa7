"""Lines on a terminal break between words, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import termios

import pytest

from spac.machine.terminal import wrapped

NOTE = "spac: --latency-budget 20 cannot be met: a step without a draft-model takes 45 ms here"


@pytest.fixture
def terminal():
    """Return a stream to a terminal of 40 columns."""
    above, below = pty.openpty()
    termios.tcsetwinsize(below, (24, 40))
    with open(below, "w") as stream:
        yield stream
    os.close(above)


def test_words_stay_whole(terminal):
    lines = wrapped(NOTE, terminal).splitlines()
    assert max(map(len, lines)) <= 40
    assert [word for line in lines for word in line.split()] == NOTE.split()
    assert all(line.startswith("  ") for line in lines[1:])


def test_a_table_keeps_its_columns(terminal):
    rows = "hit rate    62.1% of activations, 40.5% of distinct experts\nshare       GPU 62.1%"
    assert wrapped(rows, terminal).splitlines() == [
        "hit rate    62.1% of activations, 40.5%",
        "            of distinct experts",
        "share       GPU 62.1%",
    ]


def test_a_word_that_is_wider_than_the_terminal_stays_whole(terminal):
    path = "/" + "long/" * 20 + "model.gguf"
    assert path in wrapped(f"spac: error: {path}: there is no such file", terminal).splitlines()[1]


def test_what_is_no_terminal_gets_the_text_as_it_is():
    assert wrapped(NOTE, io.StringIO()) == NOTE
    assert wrapped(NOTE, None) == NOTE
