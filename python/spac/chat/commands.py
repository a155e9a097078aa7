"""The commands of the chat: lines that begin with a slash."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spac.chat.conversation import Conversation, Exchange
from spac.chat.terminal import copy
from spac.errors import InputError, one_line
from spac.machine.device_memory import size
from spac.machine.files import check_outputs

if TYPE_CHECKING:
    from spac.chat.dialogue import Dialogue, Piece


class Leave(Exception):  # noqa: N818  (a wish, not a fault)
    """The user leaves the chat."""


@dataclass(frozen=True)
class Command:
    """A command of the chat.

    `argument` describes the text after the name: "" means that there is none, brackets that it is optional.
    `purpose` is the command's line in /help. `run` executes it and returns the message for the user, or the
    pieces of an answer.
    """

    argument: str
    purpose: str
    run: Callable[[Dialogue, str], str | Iterator[Piece]]


def is_command(text: str) -> bool:
    """Return True if a line is a command for the chat.

    A line that begins with two slashes is a message for the model that begins with one.
    """
    return text.startswith("/") and not text.startswith("//")


def run_command(dialogue: Dialogue, line: str) -> str | Iterator[Piece]:
    """Execute the command in a line, and return the message for the user, or the pieces of an answer.

    Raise InputError if the command is unknown or fails, and Leave if the user leaves.
    """
    name, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    name = OTHER_NAMES.get(name, name)
    command = COMMANDS.get(name)
    if command is None:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{close[0]}?" if close else "/help lists the commands"
        raise InputError(f"/{one_line(name)} is no command; {hint}")
    if command.argument and not argument and not command.argument.startswith("["):
        raise InputError(f"/{name} needs {command.argument}")
    if argument and not command.argument:
        raise InputError(f"/{name} takes nothing after it")
    return command.run(dialogue, argument)


def _help(_dialogue: Dialogue, _argument: str) -> str:
    lines = [f"/{name} {command.argument}" for name, command in COMMANDS.items()]
    width = max(map(len, lines))
    rows = [f"{line:<{width}}  {COMMANDS[line[1:].split()[0]].purpose}" for line in lines]
    keys = [
        "Enter sends; Alt-Enter, or a backslash at the end of a line, goes on in the next one; a message may",
        'stand between """ and """. Ctrl-C stops an answer, Ctrl-D leaves. //text sends /text.',
    ]
    return "\n".join([*rows, *keys])


def _image(dialogue: Dialogue, argument: str) -> str:
    dialogue.show(argument)
    return f"{Path(argument).name} goes with the next message"


def _read(dialogue: Dialogue, argument: str) -> str:
    dialogue.quote(argument)
    return f"{Path(argument).name} goes with the next message"


def _regen(dialogue: Dialogue, _argument: str) -> Iterator[Piece]:
    return dialogue.answer_again()


def _undo(dialogue: Dialogue, _argument: str) -> str:
    said = _last(dialogue, "undo").user
    dialogue.conversation.exchanges.pop()
    return f"forgot the last exchange: {one_line(said)[:60]}"


def _edit(dialogue: Dialogue, argument: str) -> str | Iterator[Piece]:
    last = _last(dialogue, "edit")
    if argument:
        return dialogue.answer_again(argument)
    dialogue.draft = last.user
    return "Enter sends the message anew, Ctrl-C leaves it as it was"


def _copy(dialogue: Dialogue, _argument: str) -> str:
    answer = _last(dialogue, "copy").assistant
    copy(answer)
    return f"{len(answer)} characters went to the terminal's clipboard, if it takes them (OSC 52)"


def _last(dialogue: Dialogue, name: str) -> Exchange:
    if not dialogue.conversation.exchanges:
        raise InputError(f"/{name}: nothing was said yet")
    return dialogue.conversation.exchanges[-1]


def _model(dialogue: Dialogue, argument: str) -> str:
    if argument:
        raise InputError(f"/model: this chat keeps its model; start another: spac chat {one_line(argument)}")
    engine = dialogue.engine
    target, setting = engine.target, engine.setting(engine.config.sampling)
    lines = [f"{target.path.name}: {target.description}, {size(target.n_bytes)}, {target.n_layer} layers"]
    where = f"{setting.slots} of {setting.n_experts} experts in slots" if setting.n_experts else "no split"
    lines.append(f"device {setting.device}: {where}")
    drafts = Path(setting.draft).name if setting.draft else ", ".join(setting.draft_types) or "none"
    images = "yes" if engine.projector is not None else "no"
    lines.append(f"draft {drafts}; context {engine.context} tokens; images {images}")
    return "\n".join(lines)


def _set(dialogue: Dialogue, argument: str) -> str:
    name, _, value = argument.partition(" ")
    return dialogue.set_sampling(name, value.strip())


def _reset(dialogue: Dialogue, _argument: str) -> str:
    n = len(dialogue.conversation.exchanges)
    dialogue.begin(Conversation(dialogue.conversation.system))
    return f"forgot {n} exchanges; the system prompt stays"


def _save(dialogue: Dialogue, argument: str) -> str:
    path = Path(argument).expanduser()
    check_outputs({"/save": path}, dialogue.files)
    dialogue.conversation.save(path)
    return f"saved {len(dialogue.conversation.exchanges)} exchanges to {path}"


def _load(dialogue: Dialogue, argument: str) -> str:
    path = Path(argument).expanduser()
    dialogue.begin(Conversation.load(path))
    return f"loaded {len(dialogue.conversation.exchanges)} exchanges from {path}"


def _stats(dialogue: Dialogue, argument: str) -> str:
    if argument not in ("", "full"):
        raise InputError(f"/stats needs full or nothing, not '{one_line(argument)}'")
    if dialogue.generation is None:
        raise InputError("/stats: there was no answer yet")
    stats = dialogue.generation.stats
    return stats.table() if argument else stats.summary()


def _scheduler(dialogue: Dialogue, argument: str) -> str:
    dialogue.engine.set_scheduler(argument)
    return f"scheduler {argument}"


def _draft_length(dialogue: Dialogue, argument: str) -> str:
    if argument == "auto":
        dialogue.engine.fix_draft_length(None)
        return "draft length as at the start"
    try:
        length = int(argument)
    except ValueError:
        raise InputError(f"/draft-length needs a whole number or auto, not '{one_line(argument)}'") from None
    dialogue.engine.fix_draft_length(length)
    return f"draft length {length}"


def _system(dialogue: Dialogue, argument: str) -> str:
    if argument:
        dialogue.conversation.system = argument
    return f"system prompt: {one_line(dialogue.conversation.system) or 'none'}"


def _reasoning(dialogue: Dialogue, argument: str) -> str:
    if argument not in ("", "on", "off"):
        raise InputError(f"/reasoning needs on or off, not '{one_line(argument)}'")
    if argument:
        dialogue.reasoning = argument == "on"
    note = f"; {dialogue.reasoning_note}" if dialogue.reasoning_note else ""
    return f"reasoning {'on' if dialogue.reasoning else 'off'}{note}"


def _exit(_dialogue: Dialogue, _argument: str) -> str:
    raise Leave


COMMANDS = {
    "help": Command("", "this list", _help),
    "reset": Command("", "forget what was said", _reset),
    "undo": Command("", "forget the last message and its answer", _undo),
    "regen": Command("", "answer the last message anew", _regen),
    "edit": Command("[TEXT]", "edit the last message and send it again, or send TEXT in its place", _edit),
    "copy": Command("", "the last answer to the clipboard", _copy),
    "read": Command("FILE", "send a text file with the next message", _read),
    "image": Command("FILE", "show an image with the next message, to a model with --mmproj", _image),
    "save": Command("FILE", "write the conversation, as JSON", _save),
    "load": Command("FILE", "go on with a saved conversation", _load),
    "stats": Command("[full]", "the figures of the last answer, in three lines or in full", _stats),
    "scheduler": Command("NAME", "another scheduler, from the next answer on", _scheduler),
    "draft-length": Command("N|auto", "tokens drafted per step, from the next answer on", _draft_length),
    "set": Command("NAME VALUE", "a sampling option, such as temp 0.7, from the next answer on", _set),
    "model": Command("[NAME]", "which model answers and how it runs; another one needs a new chat", _model),
    "system": Command("[TEXT]", "another system prompt, from the next answer on", _system),
    "reasoning": Command("[on|off]", "whether it may reason first, from the next answer on", _reasoning),
    "exit": Command("", "leave", _exit),
}
"""The commands by name, in the order of /help."""

OTHER_NAMES = {"?": "help", "bye": "exit", "quit": "exit", "clear": "reset", "regenerate": "regen"}
"""The names that other programs have for commands."""
