"""The options of chat templates and reasoning, which `spac.chat` and `spac.serve` share."""

from __future__ import annotations

import argparse
import json
from typing import Any

from spac.chat.options import DEFAULTS, ChatOptions
from spac.cli.options import number
from spac.config import COUNT, Range
from spac.errors import InputError
from spac.machine.files import read_plain, unreadable


def add_chat_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of chat templates and reasoning; `read_chat_options` reads them."""
    parser.add_argument(
        "--chat-template", metavar="TEXT", help="a Jinja template in place of the model's own"
    )
    parser.add_argument(
        "--chat-template-file", metavar="FILE", help="a Jinja template in place of the model's own"
    )
    parser.add_argument(
        "--chat-template-kwargs", metavar="JSON", help="variables of the template, as an object in JSON"
    )
    parser.add_argument(
        "--reasoning", "-rea", choices=("on", "off", "auto"), default="auto",
        help="whether the model may reason before it answers; auto: as its template does "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--reasoning-budget", metavar="N", type=number(int, Range(-1, COUNT.high)),
        default=DEFAULTS.reasoning_budget,
        help="tokens of reasoning at most; -1 for no limit, 0 to end it at once (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--reasoning-effort", metavar="LEVEL",
        help="how much the model is to reason, in its template's words, such as low (default: its own)",
    )  # fmt: skip
    parser.add_argument(
        "--reasoning-preserve", action=argparse.BooleanOptionalAction, default=None,
        help="whether templates that can show the reasoning of earlier answers too (default: they do)",
    )  # fmt: skip


def add_prefill_option(parser: argparse._ActionsContainer) -> None:
    """Add --prefill-assistant, for programs whose messages come from clients."""
    parser.add_argument(
        "--prefill-assistant", action=argparse.BooleanOptionalAction, default=DEFAULTS.prefill,
        help="whether an assistant's message at the end of the messages is the beginning of an answer, to be "
        "continued; else it is an answer that was given before (default: it is a beginning)",
    )  # fmt: skip


def add_image_option(parser: argparse._ActionsContainer) -> None:
    """Add --image-urls, for programs whose messages come from clients."""
    parser.add_argument(
        "--image-urls", action="store_true",
        help="fetch images from http addresses in requests; whoever may send requests then lets this machine "
        "fetch any address",
    )  # fmt: skip


def read_chat_options(options: argparse.Namespace) -> ChatOptions:
    """Return the options of chat templates and reasoning.

    Raise InputError if both template options are given, if the template's file cannot be read, or if the
    variables are not a JSON object.
    """
    given, file = options.chat_template, options.chat_template_file
    if given is not None and file is not None:
        raise InputError("--chat-template and --chat-template-file: give one of them")
    variables: Any = {}
    if options.chat_template_kwargs is not None:
        try:
            variables = json.loads(options.chat_template_kwargs)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--chat-template-kwargs: not valid JSON: {error}") from None
        if not isinstance(variables, dict):
            raise InputError(
                '--chat-template-kwargs: an object is needed, such as {"reasoning_effort": "low"}'
            )
    if options.reasoning_effort not in (None, "default"):
        variables["reasoning_effort"] = options.reasoning_effort
    if options.reasoning_preserve is not None:
        variables["preserve_reasoning"] = options.reasoning_preserve
    template = given
    if file is not None:
        try:
            template = read_plain(file).decode()
        except (OSError, ValueError) as error:
            raise unreadable(file, error) from None
    prefill = getattr(options, "prefill_assistant", DEFAULTS.prefill)
    urls = getattr(options, "image_urls", DEFAULTS.image_urls)
    return ChatOptions(
        template, options.reasoning != "off", options.reasoning_budget, variables, urls, prefill
    )
