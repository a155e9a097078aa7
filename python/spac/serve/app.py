"""The server program: it loads a model, puts it into llama.cpp's server, and serves until stopped."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import env
from spac.chat.arguments import add_chat_options, add_image_option, add_prefill_option, read_chat_options
from spac.cli import interrupt
from spac.cli.options import Parser, add_config, add_engine, number, read_config
from spac.cli.program import Talk, add_talk, guarded, models, say
from spac.config import COUNT, Range, SamplingConfig
from spac.errors import InputError
from spac.serve.server import address, is_loopback, listen

if TYPE_CHECKING:
    from spac.model.c_api import Model
    from spac.serve.state import ServerState

SAMPLING = (
    "temp", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed",
    "mirostat", "mirostat_lr", "mirostat_ent",
)  # fmt: skip
"""The sampling options that hold where a request does not say."""

BACKLOG = 2048
"""The connections that the system keeps until the server takes them, as many as uvicorn asks for."""

SWITCH_S = 0.0005
"""The seconds after which a thread of Python lets another one run that waits.

After a step, the thread that computes waits so long for the interpreter. Python's default, 5 ms, is longer
than a step of a small model.
"""


def make_parser() -> Parser:
    """Return the parser of `spac.serve`'s options."""
    parser = Parser(
        prog="spac serve",
        description="Serve a Mixture-of-Experts model with OpenAI's interfaces and Anthropic's Messages, at "
        "http://HOST:PORT/v1. "
        "Without --target, the bundled demo pair. Ctrl-C stops.",
        like_llama_cpp=True,
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    server.add_argument("--port", metavar="N", type=number(int, Range(0, 65535)), default=8000,
                        help="port to listen on; 0 takes a free one (default: %(default)s)")  # fmt: skip
    server.add_argument(
        "--api-key", metavar="KEY",
        help=f"what clients must send; better given as {env.API_KEY.name} in the environment, "
        "for others can read options",
    )  # fmt: skip
    server.add_argument("--queue", metavar="N", type=number(int, Range(0, COUNT.high)), default=256,
                        help="requests that may wait; others get status 429 "
                        "(default: %(default)s)")  # fmt: skip
    server.add_argument(
        "--alias",
        "-a",
        metavar="NAME[,NAME...]",
        help="the model's names (default: its file's; the demo's: demo)",
    )
    server.add_argument("--page", "--ui", "--webui", action=argparse.BooleanOptionalAction, default=True,
                        help="offer a page at / to chat, which also shows what the engine does "
                        "(default: on)")  # fmt: skip
    server.add_argument("--drain-seconds", metavar="N", type=number(int, Range(0, 3600)), default=10,
                        help="seconds in which running answers may end after SIGTERM; then they are cut "
                        "(default: %(default)s)")  # fmt: skip
    server.add_argument(
        "--slot-save-path", metavar="DIR", type=Path,
        help="folder of files that POST /slots/ID?action=save writes (default: none)",
    )  # fmt: skip
    server.add_argument(
        "--record", metavar="FILE.npz",
        help="note what every step of all answers did, for `spac report FILE.npz`; written when the server "
        "stops",
    )  # fmt: skip
    server.add_argument(
        "--strict-model",
        action="store_true",
        help="refuse requests that name another model; without it, any name is accepted",
    )
    server.add_argument(
        "--embeddings", "--embedding", action="store_true",
        help="make embeddings too, at /v1/embeddings",
    )  # fmt: skip
    server.add_argument(
        "--pooling", choices=("mean", "cls", "last"),
        help="how embeddings make one vector of a text's tokens (default: as the model says)",
    )  # fmt: skip
    chat = parser.add_argument_group("chat")
    add_chat_options(chat)
    add_prefill_option(chat)
    add_image_option(chat)
    chat.add_argument(
        "--reasoning-format", choices=("auto", "deepseek", "deepseek-legacy", "none"), default="deepseek",
        help="how an answer's reasoning comes: deepseek (and auto) in reasoning_content, none in the "
        "content, deepseek-legacy in both (default: %(default)s)",
    )  # fmt: skip
    chat.add_argument(
        "--reasoning-budget-message", metavar="TEXT", default="",
        help="what ends the reasoning where its budget is spent, before the template's end of it",
    )  # fmt: skip
    chat.add_argument(
        "--skip-chat-parsing", action=argparse.BooleanOptionalAction, default=False,
        help="leave all that the model writes in the content, its reasoning and its calls of tools too",
    )  # fmt: skip
    add_engine(parser)
    slots = parser._option_string_actions["--slots"]  # llama-server's is a switch, for the list of slots
    slots.nargs, slots.const = "?", "auto"
    server.add_argument(
        "--no-slots", dest="shows_slots", action="store_false", help="do not list the slots at /slots"
    )
    parser.set_defaults(parallel=-1)
    parser.reads_environment = True
    sampling = parser.add_argument_group("sampling, where a request does not say")
    add_config(sampling, SamplingConfig, only=SAMPLING)
    add_talk(parser.add_argument_group("output"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped, and return the exit code, 0 after Ctrl-C."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: serve(options))


def serve(options: argparse.Namespace) -> int:
    """Listen, load the model and serve it; return the exit code."""
    from spac.serve.server import make_server
    from spac.serve.state import LOOPBACK

    check_options(options)
    talk = Talk(options.quiet)
    out = sys.stdout
    with listen(options.host, options.port) as bound, contextlib.ExitStack() as stack:
        app, state = ready(options, talk, stack, can_interrupt=True)
        if is_loopback(bound):
            state.names = {options.host.lower(), *LOOPBACK}
        if not state.has_key and not is_loopback(bound):
            talk.note("anyone who can reach this host can use the model; set --api-key")
        server = make_server(app, state, verbose=options.verbose, drain_s=options.drain_seconds)
        bound.listen(BACKLOG)  # Whoever reads the address may connect at once.
        talk.note("serving until Ctrl-C; the address goes to stdout")
        if options.page:
            talk.note(f"a page to chat is at http://{address(bound)}")
        gc.collect()
        gc.freeze()  # Collections leave out the program's own objects, which stay to its end.
        print(f"http://{address(bound)}/v1", file=out, flush=True)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
        server.run(sockets=[bound])
    return 0


def check_options(options: argparse.Namespace) -> None:
    """Raise InputError if the server's extra is not installed, or the folder of slots is not there."""
    from spac.doctor.host import missing_modules

    missing = missing_modules("server")
    if missing:
        command = "CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install 'spac[server]'"
        raise InputError(f"the server needs {', '.join(missing)}: run `{command}`")
    if options.slot_save_path is not None and not options.slot_save_path.is_dir():
        raise InputError(f"--slot-save-path: {options.slot_save_path} is no folder")


def ready(
    options: argparse.Namespace, talk: Talk, stack: contextlib.ExitStack, *, can_interrupt: bool = False
) -> tuple[Any, ServerState]:
    """Load the model, and return its app and the server state. `stack` closes the model.

    can_interrupt: whether Ctrl-C ends the loading. It needs the main thread.
    """
    from starlette.middleware.cors import CORSMiddleware

    from spac.engine import Engine
    from spac.engine.server_loop import LoopOptions
    from spac.serve.front import Front
    from spac.serve.metrics import Metrics
    from spac.serve.page import FILES
    from spac.serve.request_queue import RequestQueue
    from spac.serve.routes import METHODS
    from spac.serve.state import ServerState

    target, draft, demo = models(options, talk)
    config, chat = read_config(options, target, draft), read_chat_options(options)
    names = _names(options.alias) or ("demo" if demo else target.name,)
    if talk.progress is not None:  # stderr is a terminal, without --quiet
        talk.note(f"loading {target.name}")
    folder = "" if options.slot_save_path is None else f"{options.slot_save_path}/"
    loop = LoopOptions(
        names[0], folder, lambda model: _template_of(model, chat.template), chat.reasoning,
        chat.reasoning_budget, chat.prefill, chat.variables, options.verbose, _pooling(options, target),
        names[1:],
        options.reasoning_format, options.reasoning_budget_message, not options.skip_chat_parsing,
        options.shows_slots,
    )  # fmt: skip
    with interrupt.Interrupt(lambda: interrupt.leave) if can_interrupt else contextlib.nullcontext():
        engine = stack.enter_context(Engine(config, progress=None, serves=loop))
    for note in engine.notes:
        talk.note(note)
    engine.on_note = talk.note
    queue = RequestQueue(options.queue, engine.n_sequences)
    key = (env.API_KEY.get() or "") if options.api_key is None else options.api_key
    state = ServerState(queue, Metrics(queue, engine), names, key, FILES if options.page else ())
    state.strict_model = options.strict_model
    if not talk.quiet:
        state.log = say
    if options.record is not None:
        stack.enter_context(engine.record(options.record))
    # A model without a template goes on with what was written, and knows nothing of Markdown.
    is_markdown = chat.template is not None or engine.target.chat_template is not None
    app = CORSMiddleware(
        Front(engine, state, has_page=options.page, fetches=chat.image_urls, is_markdown=is_markdown),
        allow_origins=["*"], allow_credentials=True, allow_methods=METHODS, allow_headers=["*"],
    )  # fmt: skip
    return app, state


def _names(alias: str | None) -> tuple[str, ...]:
    return tuple(name for each in (alias or "").split(",") if (name := each.strip()))


def _template_of(target: Model, given: str | None) -> tuple[str, str]:
    """Return the chat template for llama.cpp ("" for the model's own), and a note for the user, or "".

    Raise InputError if the given one cannot be used.
    """
    from spac.engine.chat_format import FALLBACK, ChatFormat

    chat = ChatFormat(target, given)
    if chat.is_plain and target.chat_template is None:
        return "", f"{target.path.name} has no chat template: llama.cpp's default is used"
    return (FALLBACK if chat.is_plain else given or ""), chat.note


def _pooling(options: argparse.Namespace, target: Path) -> str | None:
    """Return the pooling of embeddings, or None without them. Raise InputError if the file names none."""
    from spac.model.gguf.header import HeaderError, read_header
    from spac.model.params import POOLINGS

    if not options.embeddings:
        if options.pooling is not None:
            raise InputError("--pooling is for embeddings: give --embeddings too")
        return None
    if options.pooling is not None:
        return str(options.pooling)
    try:
        metadata = read_header(target).metadata
    except (HeaderError, OSError, ValueError) as fault:
        raise InputError(f"{target}: {fault}") from None
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    name = next((name for name, number in POOLINGS.items() if number == kind), None)
    if name is None:
        raise InputError(f"{target} names no pooling for embeddings: give --pooling last or --pooling mean")
    return name
