"""Text as it comes: whole characters, and stop strings wherever the tokens cut them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spac.engine.text_stream import TextStream


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted(min(cut, len(data)) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.text(), st.lists(st.integers(0, 40)))
def test_the_pieces_are_whole_characters_and_add_up(text, cuts):
    stream = TextStream()
    data = text.encode("utf-8", "surrogatepass")
    pieces = [stream.push(piece) for piece in split(data, cuts)]
    assert "".join(pieces) + stream.finish() == data.decode("utf-8", "replace")


def test_a_character_waits_for_its_last_byte():
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "é".encode()] == ["", "é"]


def test_bytes_that_are_no_text_are_replaced():
    stream = TextStream()
    assert stream.push(b"\xff") == "�"
    assert stream.push(b"\xe2\x82") == ""
    assert stream.finish() == "�"


@given(st.text("ab", max_size=30), st.text("ab", min_size=1, max_size=4), st.lists(st.integers(0, 30)))
def test_a_stop_string_ends_the_text_wherever_it_is_cut(text, stop, cuts):
    stream = TextStream([stop])
    pieces = [stream.push(piece) for piece in split(text.encode(), cuts)]
    assert "".join(pieces) + stream.finish() == text.split(stop)[0]
    assert stream.stopped == (stop in text)


def test_the_first_of_several_stop_strings_counts():
    stream = TextStream(["three", "two"])
    assert stream.push(b"one two three") == "one "


def test_what_may_become_a_stop_string_is_held_back():
    stream = TextStream(["\nEND"])
    assert stream.push(b"one\nEN") == "one"
    assert stream.push(b"V") == "\nENV"
    assert stream.push(b"\nEN") == ""
    assert stream.push(b"D and more") == ""
    assert stream.stopped
    assert stream.finish() == ""
