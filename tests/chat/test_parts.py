"""These tests cover the parts of the chat that need no model: conversations, input, Markdown."""

from __future__ import annotations

import io
import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.chat.conversation import Conversation, Exchange
from spac.chat.dialogue import Piece
from spac.chat.terminal import Lines, Markdown, Plain, fold, is_complete, split_blocks, unfold, visible
from spac.errors import InputError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CONVERSATIONS = st.builds(Conversation, TEXT, st.lists(st.builds(Exchange, TEXT, TEXT, TEXT), max_size=4))


# Conversations


@given(CONVERSATIONS)
def test_what_was_saved_is_loaded(tmp_path_factory, conversation):
    path = tmp_path_factory.mktemp("saved") / "chat.json"
    conversation.save(path)
    assert Conversation.load(path) == conversation
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # only the user may read the conversation


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "chat.json"
    Conversation("first").save(path)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        Conversation("second").save(path)
    assert Conversation.load(path).system == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_reasoning_is_saved_apart(tmp_path):
    """Other programs can read the file, and write a list of messages."""
    path = tmp_path / "chat.json"
    Conversation("s", [Exchange("ü", "b", "hm"), Exchange("c", "d")]).save(path)
    messages = json.loads(path.read_text())["messages"]
    assert messages[1:3] == [
        {"role": "user", "content": "ü"}, {"role": "assistant", "content": "b", "reasoning_content": "hm"},
    ]  # fmt: skip
    assert messages[4] == {"role": "assistant", "content": "d"}
    messages[4]["reasoning_content"] = None  # some programs write it so
    path.write_text(json.dumps(messages))
    assert Conversation.load(path) == Conversation("s", [Exchange("ü", "b", "hm"), Exchange("c", "d")])


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "3", "{}", '"text"', "[3]", '{"messages": [3]}', '{"messages": [{"role": "user"}]}',
        '[{"role": "user", "content": "alone"}]', '[{"role": "assistant", "content": "first"}]',
        '[{"role": "user", "content": 3}, {"role": "assistant", "content": "b"}]',
        '{"spac_chat": 2, "messages": []}',
        '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": 3}]',
    ],
)  # fmt: skip
def test_what_is_no_conversation(tmp_path, text):
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"chat\.json") as refused:
        Conversation.load(path)
    assert "\n" not in str(refused.value)


def test_forgotten_exchanges_stay_in_the_conversation():
    conversation = Conversation("be brief", [Exchange("a", "b"), Exchange("c", "d")])
    assert [message["content"] for message in conversation.messages("e", skip=1)] == [
        "be brief", "c", "d", "e",
    ]  # fmt: skip
    assert len(conversation.messages()) == 5


# Input


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hello\n", ["hello"]), ("one \\\ntwo\nthree\n", ["one \ntwo", "three"]),
        ("cut short \\", ["cut short"]),
        ('"""\nfor x in y:\n\n    pass\n"""\nnext\n', ["for x in y:\n\n    pass", "next"]),
        ('"""one line"""\n', ["one line"]), ("last without newline", ["last without newline"]),
        ('"""never closed\n', ["never closed"]), ("\n\n", ["", ""]), ("", []),
    ],
)  # fmt: skip
def test_messages_of_several_lines(monkeypatch, typed, meant):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    lines = Lines()
    assert [lines.read() for _ in meant] == meant
    with pytest.raises(EOFError):
        lines.read()


@given(st.text(st.sampled_from('ab"\\\n /')))
def test_whatever_is_typed_can_be_ended(text):
    """One more line completes every message that is not complete."""
    assert is_complete(text) or is_complete(text + "\n") or is_complete(text + '\n"""')
    message = unfold(text)
    typed = fold(message)
    assert is_complete(typed)
    assert unfold(typed) == (f"/{message}" if message.startswith("/") else message)


# Markdown


@given(
    st.lists(st.sampled_from(["# h", "text", "- a", "  b", "```", "1. x", "", "> q", "| a |", "---", "\r"]))
)
def test_blocks_are_split_where_they_end(lines):
    """Reading piece by piece and reading at once give the same blocks, and every character is kept."""
    text = "\n".join(lines)
    done, tail = "", ""
    for character in text:
        tail += character
        if character == "\n":
            complete, tail = split_blocks(tail)
            done += complete
    assert done + tail == text
    complete, rest = split_blocks(text)
    assert complete + rest == text


def display_of(**console):
    """Return a display of Markdown on a screen of 60 columns and 10 lines."""
    from rich.console import Console

    display = Markdown()
    display._console = Console(width=60, height=10, **{"color_system": None, **console})
    return display


def drawn(pieces, **console):
    """Return the text that a terminal shows for an answer, without colors."""
    out = io.StringIO()
    display_of(file=out, **console).show(iter(pieces), lambda: "figures")
    return out.getvalue()


def lines_of(pieces):
    return [line.rstrip() for line in drawn(pieces).splitlines()]


def cut(text, size=7):
    return [Piece(text[at : at + size]) for at in range(0, len(text), size)]


ANSWER = """# Title

Some *text* with <think> and `code`.

```python
def f():
    return 1
```

- one
- two
"""


def test_an_answer_is_drawn_as_markdown():
    shown = drawn(cut(ANSWER))
    for part in ("Title", "Some text with <think> and code.", "def f():", "    return 1", " • one", " • two"):
        assert part in shown
    for sign in ("*text*", "```", "# Title"):
        assert sign not in shown
    assert drawn(cut(ANSWER, 1)).split() == drawn(cut(ANSWER, 999)).split()


def test_a_block_longer_than_the_screen_is_shown_whole():
    lines = [f"line {at}" for at in range(40)]
    shown = [line.strip() for line in lines_of(cut("```\n" + "\n".join(lines) + "\n```\n"))]
    assert [line for line in shown if line.startswith("line")] == lines


def test_what_failed_halfway_stays_on_the_screen(capsys):
    def failing():
        yield from cut("as far as it came", 10)
        raise RuntimeError

    for display in (Plain(terminal=True), Markdown()):
        with pytest.raises(RuntimeError):
            display.show(failing(), str)
        assert "as far as it came" in capsys.readouterr().out


def test_a_terminal_obeys_no_model():
    assert visible("a\x1b[2Jb\r\nc\td\x9b") == "a\N{REPLACEMENT CHARACTER}[2Jb\nc\td\N{REPLACEMENT CHARACTER}"


def test_a_pipe_gets_the_text_as_it_is(capsys):
    Plain(terminal=False).show(iter(cut("a\x1b[2Jb", 5)), str)
    assert capsys.readouterr().out == "a\x1b[2Jb\n"


# Reasoning

THOUGHT = [
    Piece("So *be* ", is_reasoning=True),
    Piece("it.\n\n", is_reasoning=True),
    Piece("No\x1b[2J\n\n", is_reasoning=True),
    Piece("*Hi*"),
]


@pytest.mark.parametrize(("quiet", "noted"), [(False, "So *be* it.\n\nNo\x1b[2J\n"), (True, "")])
def test_a_pipe_gets_answers_alone(capsys, quiet, noted):
    Plain(terminal=False, quiet=quiet).show(iter(THOUGHT), str)
    assert capsys.readouterr() == ("*Hi*\n", noted)


def test_nobody_reads_the_reasoning(capsys, monkeypatch):
    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    Plain(terminal=False).show(iter(THOUGHT), str)
    assert capsys.readouterr().out == "*Hi*\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_reasoning_is_dim_on_a_terminal(capsys, monkeypatch, quiet):
    monkeypatch.delenv("NO_COLOR", raising=False)
    Plain(terminal=True, quiet=quiet).show(iter(THOUGHT), str)
    shown = "\x1b[2mSo *be*\x1b[0m\x1b[2m it.\x1b[0m\x1b[2m\n\nNo\ufffd[2J\x1b[0m\n\n*Hi*\n"
    assert capsys.readouterr() == (shown, "")


def test_without_colors_reasoning_is_named(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    Plain(terminal=True).show(iter([*THOUGHT, Piece("So?", is_reasoning=True), Piece("Ho")]), str)
    assert capsys.readouterr().out == (
        "[reasoning]\nSo *be* it.\n\nNo\ufffd[2J\n[answer]\n*Hi*[reasoning]\nSo?\n[answer]\nHo\n"
    )


def test_reasoning_stands_above_the_markdown():
    for part in ("So *be* it.", "No\ufffd[2J"):  # as the model wrote it, and dim
        assert "\x1b[2m" + part in drawn(THOUGHT, color_system="standard", force_terminal=True)
    assert lines_of(THOUGHT) == ["So *be* it.", "", "No\ufffd[2J", "", "Hi"]


def test_long_reasoning_is_kept_whole():
    pieces = [Piece(f"# step {at}\nso\n\n", is_reasoning=True) for at in range(40)]
    shown = lines_of([*pieces, Piece("Done.")])
    assert shown == [line for at in range(40) for line in (f"# step {at}", "so", "")] + ["Done."]


def test_the_growing_reasoning_fits_on_the_screen():
    display = display_of()
    display._is_reasoning, display._status = True, lambda: "reasoning"
    display._tail = "\n".join(f"step {at}" for at in range(40))
    with display._console.capture() as captured:
        display._console.print(display._growing())
    lines = captured.get().split()
    assert {"reasoning", "39"} <= set(lines)
    assert "30" not in lines
