"""The server program: it loads a model, puts it into llama-cpp-python's server, and serves until stopped."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import env
from spac.chat.arguments import add_chat_options, add_image_option, add_prefill_option, read_chat_options
from spac.chat.options import ChatOptions
from spac.cli import interrupt
from spac.cli.options import Parser, add_config, add_engine, number, read_config
from spac.cli.program import Talk, add_talk, guarded, models, say
from spac.config import COUNT, EngineConfig, Range, SamplingConfig
from spac.config.engine import LOOPS
from spac.errors import InputError
from spac.serve.server import address, is_loopback, listen

if TYPE_CHECKING:
    from spac.serve.state import ServerState

_SAME = ("top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed")
SAMPLING = {
    "temp": "temperature", **{name: name for name in _SAME},
    "mirostat": "mirostat_mode", "mirostat_lr": "mirostat_eta", "mirostat_ent": "mirostat_tau",
}  # fmt: skip
"""The sampling options that a request can give: their names in `SamplingConfig`, and in a request."""

RUN_S = 0.02
"""The seconds for which steps go on before the threads of their answers are woken.

Nobody sees so short a pause in a text, and waking the threads takes more time than a step of a small model.
"""
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
    server.add_argument("--queue", metavar="N", type=number(int, Range(0, COUNT.high)), default=16,
                        help="requests that may wait; others get status 429 "
                        "(default: %(default)s)")  # fmt: skip
    server.add_argument(
        "--alias", "-a", metavar="NAME", help="the model's name (default: its file's; the demo's: demo)"
    )
    server.add_argument("--page", action=argparse.BooleanOptionalAction, default=True,
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
        help="make embeddings too, at /v1/embeddings, in a context of its own",
    )  # fmt: skip
    server.add_argument(
        "--pooling", choices=("mean", "cls", "last"),
        help="how embeddings make one vector of a text's tokens (default: as the model says)",
    )  # fmt: skip
    server.add_argument(
        "--loop", choices=LOOPS, default="own",
        help="what generates: spac's own loop, or that of llama.cpp's server with spac's hooks "
        "(default: %(default)s)",
    )  # fmt: skip
    chat = parser.add_argument_group("chat")
    add_chat_options(chat)
    add_prefill_option(chat)
    add_image_option(chat)
    add_engine(parser)
    parser.set_defaults(parallel=-1)
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

    check_options(options)
    talk = Talk(options.quiet)
    out = sys.stdout
    with listen(options.host, options.port) as bound, contextlib.ExitStack() as stack:
        # llama-cpp-python's server prints to stdout when a client leaves.
        chatter = sys.stderr if options.verbose else stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(contextlib.redirect_stdout(chatter))
        app, state = ready(options, talk, stack, can_interrupt=True)
        if not state.has_key and not is_loopback(bound):
            talk.note("anyone who can reach this host can use the model; set --api-key")
        server = make_server(app, state, verbose=options.verbose, drain_s=options.drain_seconds)
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
    from spac.serve.description import described, meta_of
    from spac.serve.slots import Slots

    target, draft, demo = models(options)
    config, chat_options = read_config(options, target, draft), read_chat_options(options)
    pooling = _pooling(options, target)
    name = options.alias or ("demo" if demo else target.name)
    if talk.progress is not None:  # stderr is a terminal, without --quiet
        talk.note(f"loading {target.name}")
    if options.loop == "llama.cpp":
        return _ready_loop(options, config, chat_options, name, pooling, talk, stack)
    with interrupt.Interrupt(lambda: interrupt.leave) if can_interrupt else contextlib.nullcontext():
        llama = stack.enter_context(contextlib.closing(load(config, pooling)))
    for note in llama.notes:
        talk.note(note)
    if llama.embedder is not None:
        talk.note(f"embeddings: pooling {pooling}, texts of {llama.embedder.limit} tokens at most")
    if llama.engine is not None:
        llama.engine.on_note = talk.note
    if note := adopt_format(llama, chat_options):
        talk.note(note)
    app, state = make_app(
        llama, name,
        env.API_KEY.get() if options.api_key is None else options.api_key, options.queue,
        sampling_defaults(config.sampling), has_page=options.page,
    )  # fmt: skip
    state.props = described(llama, state.models[0], chat_options.template, state.defaults)
    state.meta = meta_of(llama)
    if not talk.quiet:
        state.log = say
    if options.record is not None:
        if llama.engine is None or llama.engine.batch is None:
            raise InputError("--record: a server's recording needs several generations at once (--parallel)")
        stack.enter_context(llama.engine.record(options.record))
    state.slots = Slots(llama, state.queue, options.slot_save_path)
    state.strict_model = options.strict_model
    return app, state


def _ready_loop(
    options: argparse.Namespace,
    config: EngineConfig,
    chat: ChatOptions,
    name: str,
    pooling: str | None,
    talk: Talk,
    stack: contextlib.ExitStack,
) -> tuple[Any, ServerState]:
    """Load the model into llama.cpp's server, and return the app in front of it, and the server state."""
    from starlette.middleware.cors import CORSMiddleware

    from spac.engine import Engine
    from spac.engine.server_loop import LoopOptions
    from spac.serve.loop_app import METHODS, LoopApp
    from spac.serve.metrics import Metrics
    from spac.serve.page import FILES
    from spac.serve.request_queue import RequestQueue
    from spac.serve.state import ServerState

    folder = "" if options.slot_save_path is None else f"{options.slot_save_path}/"
    loop = LoopOptions(
        name, folder, chat.template or "", chat.reasoning, chat.reasoning_budget, chat.prefill,
        chat.variables, options.verbose, pooling,
    )  # fmt: skip
    engine = stack.enter_context(Engine(config, progress=None, serves=loop))
    for note in engine.notes:
        talk.note(note)
    engine.on_note = talk.note
    queue = RequestQueue(options.queue, engine.n_sequences)
    key = env.API_KEY.get() if options.api_key is None else options.api_key
    metrics = Metrics(queue)
    assert engine.steps is not None
    metrics.watch(
        engine.steps, lambda: engine.batch_stats, lambda: queue.n_served, lambda: queue.n_waiting,
        counts_tokens=True,
    )  # fmt: skip
    state = ServerState(queue, metrics, (name,), key, page=FILES if options.page else ())
    state.strict_model = options.strict_model
    if not talk.quiet:
        state.log = say
    if options.record is not None:
        stack.enter_context(engine.record(options.record))
    pages = CORSMiddleware(
        LoopApp(engine, state, has_page=options.page, fetches=chat.image_urls), allow_origins=["*"],
        allow_credentials=True, allow_methods=METHODS, allow_headers=["*"],
    )  # fmt: skip
    return pages, state


def load(config: EngineConfig, pooling: str | None = None) -> Any:
    """Return the model as llama-cpp-python's `Llama` with the split; with `pooling`, it has an embedder."""
    from spac.llama_cpp_python.llama import Llama

    llama = Llama.from_config(config, pooling=pooling, verbose=False)
    llama.run_s = RUN_S
    return llama


def _pooling(options: argparse.Namespace, target: Path) -> str | None:
    """Return the pooling of embeddings, or None without them. Raise InputError if the file names none."""
    if not options.embeddings:
        if options.pooling is not None:
            raise InputError("--pooling is for embeddings: give --embeddings too")
        return None
    from spac.llama_cpp_python.embedder import pooling_of

    return options.pooling or pooling_of(target)


def sampling_defaults(sampling: SamplingConfig) -> dict[str, Any]:
    """Return the values that apply where a request gives none, by their names in a request.

    Without them, llama-cpp-python's server would penalize repetitions.
    """
    given = {asked: getattr(sampling, name) for name, asked in SAMPLING.items()}
    return {name: value for name, value in given.items() if value is not None}


def adopt_format(llama: Any, options: ChatOptions) -> str:
    """Give chat requests the format of the model's family; return a note for the user, or ""."""
    from spac.chat.format import ChatFormat
    from spac.serve.served_model import ServedChat

    chat = ChatFormat(llama.target, options.template)
    llama.chat_handler = ServedChat(chat, options)
    return chat.note


def make_app(
    llama: Any,
    name: str,
    api_key: str,
    queue: int,
    given: Mapping[str, Any] | None = None,
    *,
    has_page: bool = False,
) -> tuple[Any, ServerState]:
    """Return llama-cpp-python's app around a model, behind the middleware, and the server state.

    given: the default sampling options, see `sampling_defaults`; has_page: whether there is a page at /.
    """
    from llama_cpp.server import app as upstream
    from llama_cpp.server.settings import ModelSettings, ServerSettings
    from starlette.middleware import Middleware

    from spac.serve.metrics import Metrics
    from spac.serve.middleware import RequestMiddleware
    from spac.serve.page import FILES, page_routes
    from spac.serve.page.live import LiveFeed
    from spac.serve.request_queue import RequestQueue
    from spac.serve.routes import add_routes
    from spac.serve.served_model import ModelProxy, ServedModel
    from spac.serve.state import ServerState

    engine = getattr(llama, "engine", None)
    batch = engine.batch if engine is not None else None
    request_queue = RequestQueue(queue, batch.n_sequences if batch is not None else 1)
    metrics = Metrics(request_queue)
    feed = LiveFeed(llama) if has_page else None
    state = ServerState(request_queue, metrics, (name,), api_key, given, FILES if has_page else ())
    if engine is not None:
        metrics.reading = engine.reading.now
        if batch is not None:
            metrics.reading = state.reading
            metrics.watch(
                batch.steps, lambda: engine.batch_stats, lambda: batch.n_running, lambda: batch.n_waiting
            )
    upstream.get_llama_proxy = _proxy_without_lock
    proxied = ModelProxy(name, ServedModel(llama, name, metrics, feed))
    os.environ.pop("CONFIG_FILE", None)  # the app would read its models and its key from this file
    proxy, upstream.LlamaProxy = upstream.LlamaProxy, lambda models: proxied
    try:
        app = upstream.create_app(
            # The middleware checks the key. A request must not be interrupted by the next one.
            server_settings=ServerSettings(api_key=None, interrupt_requests=False, root_path=""),
            model_settings=[ModelSettings(model=name)],
        )
    finally:
        upstream.LlamaProxy = proxy
    # The middleware stands behind CORS, so that browsers can read refusals too.
    app.user_middleware.append(Middleware(RequestMiddleware, state=state))
    add_routes(app, state)
    if feed is not None:
        app.router.routes.extend(page_routes(feed))
    return app, state


async def _proxy_without_lock() -> AsyncIterator[Any]:
    """Yield llama-cpp-python's proxy without its lock, because the request queue says how many may run."""
    from llama_cpp.server import app as upstream

    yield upstream._llama_proxy
