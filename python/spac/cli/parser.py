"""The parser of all programs' command lines. It also understands llama.cpp's options."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
import textwrap
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from spac import env
from spac.cli import config_file
from spac.cli.llama_cpp_environment import options_of
from spac.cli.llama_cpp_options import foreign_options
from spac.errors import InputError, one_line
from spac.machine.terminal import wrapped
from spac.model import known

FIRST = (
    "target", "hf_repo", "draft", "prompt", "file", "image", "max_tokens", "system", "host", "port",
    "api_key", "slots", "vram_limit", "device", "threads", "ctx", "parallel", "scheduler", "schedulers",
    "slot_numbers", "draft_lengths", "submit", "temp", "seed", "stats",
)  # fmt: skip
"""The options that matter most, by their names in the namespace. A long help begins with them."""
TWO_SCREENS = 80
"""Lines. A longer help shows the options that matter most, and names the groups of the others."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, with exit code 2.

    An argument of one dash and several letters is an option of that name. Only a number may follow a short
    option directly (-c4096). `notes` has a line for each option that was understood but is not needed.
    """

    def __init__(self, prog: str, description: str, *, like_llama_cpp: bool = False) -> None:
        """Make a parser without options.

        With `like_llama_cpp`, llama.cpp's options that spac does not have are understood, or refused with a
        remedy. They are many, so the usage does not list them.
        """
        usage = "%(prog)s [MODEL] [OPTIONS]" if like_llama_cpp else None
        super().__init__(
            prog=prog, description=description, usage=usage, allow_abbrev=False, add_help=False,
            formatter_class=_Formatter,
        )  # fmt: skip
        self.add_argument(
            "--help", "-h", action=_Help, nargs="?", metavar="GROUP", default=argparse.SUPPRESS,
            help="show the options of a group, or all of them (all), and exit",
        )  # fmt: skip
        self.notes: list[str] = []
        self.reads_environment = False
        """True to read llama-server's variables as options, before those of the command line."""
        self._foreign = foreign_options(prog.rpartition(" ")[2]) if like_llama_cpp else {}

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr, and exit with code 2."""
        line = f"{self.prog}: error: {one_line(message)} (--help lists the options)"
        self.exit(2, wrapped(line, sys.stderr) + "\n")

    def help_on(self, group: str | None) -> str:
        """Return the help on a group's options, on all ("all"), or on those that matter most (None)."""
        whole, groups = self.format_help(), self.groups()
        if group == "all" or (group is None and len(whole.splitlines()) <= TWO_SCREENS):
            return whole
        if group is None:
            return self._short_help(groups)
        if group not in groups:
            self.error(f"--help: '{group}' is no group: choose one of {', '.join([*groups, 'all'])}")
        return self._help_of(str(groups[group].title), groups[group]._group_actions)

    def groups(self) -> dict[str, argparse._ArgumentGroup]:
        """Return the groups of options that have a title of ours, by its first word."""
        groups = [group for group in self._action_groups[2:] if any(map(_is_shown, group._group_actions))]
        return {str(group.title).split()[0].strip(","): group for group in groups}

    def _short_help(self, groups: dict[str, argparse._ArgumentGroup]) -> str:
        options = {action.dest: action for action in reversed(self._actions) if _is_shown(action)}
        matter = [options[name] for name in FIRST if name in options]
        first = self._help_of("options that matter most", matter)
        lines = [
            f"  --help {name:<10} {sum(map(_is_shown, group._group_actions)):>2} options: "
            + str(group.title).partition(",")[0]
            for name, group in groups.items()
        ]
        return "\n".join([f"{first}\nall options, by group:", *lines, f"  --help {'all':<10} every option\n"])

    def _help_of(self, title: str, actions: Sequence[argparse.Action]) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
        return formatter.format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments as argparse does. argparse's `parse_args` calls this too."""
        given = sys.argv[1:] if args is None else args
        words = [*self._from_environment(), *self._spelled_out(deque(given))]
        found, rest = super().parse_known_args([*self._from_file(words), *words], namespace)
        if len(rest) == 1 and self._take_model(found, rest[0]):
            return found, []
        if rest:
            self.error(f"'{rest[0]}' belongs to no option{self._remedy(rest[0])}")
        return found, rest

    def _take_model(self, found: argparse.Namespace, word: str) -> bool:
        """Take a word without an option for the model, if it looks like a file or like a model's name."""
        flag = "--target" if word.endswith(".gguf") or os.path.isfile(word) else "--hf-repo"
        action = self._option_string_actions.get(flag)
        if action is None or any(getattr(found, name, None) is not None for name in ("target", "hf_repo")):
            return False
        with contextlib.suppress(argparse.ArgumentError):
            setattr(found, action.dest, self._get_value(action, word))
            return True
        return False

    def split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the options at the beginning, with their values, and the words after them.

        The second list begins with the first word that is neither, or after "--".
        """
        known, i = self._option_string_actions, 0
        while i < len(words) and _looks_like_an_option(words[i]) and words[i] not in ("-m", "--"):
            action = known.get(self._as_here(words[i]))
            i += 2 if action is not None and action.nargs != 0 else 1
        rest = list(words[i:])
        return list(words[:i]), rest[1:] if rest[:1] == ["--"] else rest

    def _from_file(self, words: list[str]) -> list[str]:
        """Return the options of the user's file of defaults, and note which there are.

        What belongs to the file's model is left out if `words` name another one.
        """
        if not {"-h", "--help"}.isdisjoint(words):  # help comes with a faulty file too
            return []
        try:
            options = config_file.options_of(self, self.prog.rpartition(" ")[2])
        except InputError as error:
            self.exit(2, f"{self.prog}: error: {error}\n")
        if not options:
            return []
        found, rest = super().parse_known_args(words)
        if rest or any(getattr(found, name, None) is not None for name in ("target", "hf_repo")):
            options = config_file.without_model(options)
        given = ", ".join(dict.fromkeys(word.partition("=")[0] for _, word in options))
        self.notes += [f"{env.config_file()} gives {given}"] if given else []
        return [word for _, word in options]

    def _from_environment(self) -> list[str]:
        """Return the arguments that llama-server's variables stand for, and note which were used."""
        if not self.reads_environment:
            return []
        foreign = {flag: each.n_values for flag, each in self._foreign.items()}
        words = []
        for name, stands_for in options_of(os.environ, self._option_string_actions, foreign):
            shown = stands_for[0].partition("=")[0] if stands_for else ""
            self.notes.append(f"{name} is read as {shown}" if shown else f"{name}: no option of {self.prog}")
            words += self._spelled_out(deque(stands_for))
        return words

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        return []  # keeps argparse from matching the beginning of an option

    def _spelled_out(self, given: deque[str]) -> list[str]:
        """Return the arguments in a form that argparse cannot misread, without foreign options."""
        known, words = self._option_string_actions, list[str]()
        while given:
            word = given.popleft()
            if word == "--":
                return [*words, word, *given]
            name, equals, value = word.partition("=")
            name = self._as_here(name)
            if not _looks_like_an_option(word):
                words.append(word)
            elif name in known:
                if value == "--":  # argparse would drop it
                    self.error(f"argument {name}: expected one argument")
                words.append(name + equals + value)
                if not equals and self._takes_next(known[name], given):
                    words[-1] += "=" + given.popleft()
            elif word[:2] in known and known[word[:2]].nargs != 0 and _NUMBER.fullmatch(word[2:]):
                words.append(f"{word[:2]}={word[2:]}")
            elif name in self._foreign:
                self._take(name, [value] if equals else [], given)
            else:
                self.error(f"unknown option '{word}'{self._hint(name)}")
        return words

    def _as_here(self, name: str) -> str:
        """Return the option's name here: llama.cpp accepts --ctx_size for --ctx-size."""
        plain = name.replace("_", "-")
        return plain if name.startswith("--") and self._is_option(plain) else name

    def _is_option(self, word: str) -> bool:
        return word.partition("=")[0] in {**self._option_string_actions, **self._foreign}

    def _takes_next(self, action: argparse.Action, given: deque[str]) -> bool:
        """Return True if the next argument is the option's one value although it begins with a dash."""
        if action.nargs is not None or not given or given[0] == "--":
            return False
        return given[0].startswith("-") and not self._is_option(given[0])

    def _take(self, name: str, values: list[str], given: deque[str]) -> None:
        """Read an option of llama.cpp that spac does not have, and note or refuse it."""
        foreign = self._foreign[name]
        while given and foreign.takes(len(values), given[0]) and not self._is_option(given[0]):
            values.append(given.popleft())
        if foreign.refuses(values):
            self.error(f"{name}: {foreign.text}")
        if len(values) < foreign.n_values:
            self.error(f"argument {name}: expected one argument")
        self.notes.append(f"{name}: {foreign.note}")

    def _remedy(self, word: str) -> str:
        there = self._option_string_actions
        uses = {"--target": "one model file needs no option", "--prompt": "a prompt is given with --prompt"}
        if "--hf-repo" in there and (close := known.near(word)) and not known.hub_name(word):
            return f" and is no model's name; did you mean {close}?"
        told = [text for flag, text in uses.items() if flag in there]
        return f": {', '.join(told)}" if told else ""

    def _hint(self, name: str) -> str:
        known = [*self._option_string_actions, *self._foreign]
        near = difflib.get_close_matches(name, known, n=1)
        return f"; did you mean {near[0]}?" if near else ""


class _Formatter(argparse.HelpFormatter):
    """Breaks lines between words, leaves names with hyphens whole, and names an option's value once."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width)), indent)


class _Help(argparse.Action):
    """The argparse action of --help."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        """Print the help, and exit."""
        assert isinstance(parser, Parser)
        print(parser.help_on(values), end="")
        parser.exit()


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS


def _looks_like_an_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and " " not in word and _NUMBER.fullmatch(word) is None
