"""Text comes in whole characters. Stop strings are found wherever the tokens cut them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from spac.engine.text_stream import StopSearch, TextStream


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted(min(cut, len(data)) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.text(), st.lists(st.integers(0, 40)))
def test_the_pieces_are_whole_characters_and_add_up(text, cuts):
    stream = TextStream()
    data = text.encode("utf-8", "surrogatepass")
    pieces = [stream.push(piece) for piece in split(data, cuts)]
    assert "".join(pieces) + stream.finish() == data.decode("utf-8", "replace")


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 12), max_size=5),
)
@example("ba", ["a", "ba"], [])
def test_a_text_ends_before_the_stop_string_that_is_complete_first(text, stops, cuts):
    """This holds however the text is cut. Of two strings that end together, the longer one counts."""
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(each) for each in stops)]
    met = max((each for each in stops if ends and text[: ends[0]].endswith(each)), key=len, default=None)
    search, stream = StopSearch(stops), TextStream(stops)
    read = "".join(search.push(piece.decode()) for piece in split(text.encode(), cuts))
    held = search.rest()
    assert search.met == met
    assert read + held == (text[: ends[0] - len(met)] if met else text)
    assert not held or any(each.startswith(held) for each in stops)
    pieces = [stream.push(piece) for piece in split(text.encode(), cuts)]
    assert "".join(pieces) + stream.finish() == read + held
    assert stream.stopped == (met is not None)


def test_what_may_become_a_stop_string_is_held_back():
    stream = TextStream(["\nEND"])
    assert stream.push(b"one\nEN") == "one"
    assert stream.push(b"V") == "\nENV"
    assert stream.push(b"\nEN") == ""
    assert stream.push(b"D and more") == ""
    assert stream.stopped
    assert stream.finish() == ""
