"""Several engines behind one address, on one machine or many: a deployment of Ray Serve.

Each replica is an engine, usually with a GPU of its own. The interfaces are those of `spac serve`. A
conversation goes to the engine that has read its beginning. `examples/ray_serve.py` shows a program.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spac import env
from spac.config.engine import AUTO_PARALLEL
from spac.errors import InputError
from spac.serve.app import check_options, make_parser

if TYPE_CHECKING:
    from ray.serve import Application

STOP_S = 20.0
"""Seconds in which the answers of a replica that is stopped may end."""


def application(
    arguments: Sequence[str],
    *,
    replicas: int = 1,
    most_replicas: int | None = None,
    gpus: float = 1,
    cpus: float = 1,
) -> Application:
    """Return an application for `ray.serve.run`, or for `run` of this module.

    arguments: options of `spac serve`; those of the address are not used. Files are looked up where a replica
    runs. replicas: the number of engines. most_replicas: if given, Ray Serve starts and stops engines
    between both numbers, by the length of the queue. gpus, cpus: what Ray reserves for an engine. Ray shows
    each engine its own GPUs. `--threads` should be `cpus`, if engines share a machine.

    Raise InputError if an argument is wrong, or Ray is not installed.
    """
    arguments = [*arguments]
    options = _parsed(arguments)
    highest = replicas if most_replicas is None else most_replicas
    if not 0 < replicas <= highest:
        raise InputError(
            f"{replicas} to {highest} replicas: the numbers must be 1 or more, the higher one last"
        )
    if gpus < 0 or cpus < 0:
        raise InputError("gpus and cpus must not be negative")
    try:
        from ray import serve

        from spac.serve.ray.door import Door
        from spac.serve.ray.replica import Replica
    except ImportError as error:
        raise InputError(f"Ray Serve cannot be imported ({error}): run `pip install 'spac[ray]'`") from None
    places = AUTO_PARALLEL if options.parallel == -1 else options.parallel
    scale: dict[str, Any] = {"num_replicas": replicas}
    if highest > replicas:
        scale = {"num_replicas": None, "autoscaling_config": {
            "min_replicas": replicas, "max_replicas": highest, "target_ongoing_requests": places,
        }}  # fmt: skip
    engines = serve.deployment(
        Replica,
        name="engines",
        max_ongoing_requests=places + options.queue,
        request_router_config={"request_router_class": "spac.serve.ray.router:PrefixRouter"},
        ray_actor_options={"num_gpus": gpus, "num_cpus": cpus},
        graceful_shutdown_timeout_s=STOP_S,
        max_constructor_retry_count=1,
        **scale,
    )
    key = env.API_KEY.get() if options.api_key is None else options.api_key
    entrance: Any = Door  # Ray's decorator makes a deployment of the class
    door = entrance.options(name="door", max_ongoing_requests=highest * (places + options.queue))
    return door.bind(engines.bind(arguments, key or ""))


def _parsed(arguments: list[str]) -> Any:
    """Return the options; raise InputError if they are wrong, with the parser's line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = make_parser().parse_args(arguments)
    except SystemExit:
        lines = said.getvalue().strip().splitlines() or ["these are no options of spac serve"]
        raise InputError(lines[-1].removeprefix("spac serve: error: ")) from None
    check_options(options)
    return options


def _messages() -> str:
    """Return what Ray Serve says of the replicas that it could not start."""
    from ray import serve

    states = [each for app in serve.status().applications.values() for each in app.deployments.values()]
    return "\n".join(["", *(each.message for each in states)])


def app(arguments: Mapping[str, Any]) -> Application:
    """Return the application for Ray Serve's configuration files and `serve run spac.serve.ray:app`.

    The arguments are those of `application`; `arguments` itself may be a text in a shell's form.
    """
    import shlex

    given = dict(arguments)
    words = given.pop("arguments", "")
    numbers = {"replicas": int, "most_replicas": int, "gpus": float, "cpus": float}
    if unknown := [*(given.keys() - numbers.keys())]:
        raise InputError(f"unknown arguments: {', '.join(sorted(unknown))}; known are {', '.join(numbers)}")
    try:
        values = {name: numbers[name](value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"an argument is no number: {error}") from None
    return application(shlex.split(words) if isinstance(words, str) else words, **values)


def run(application: Application, host: str = "127.0.0.1", port: int = 8000) -> str:
    """Serve the application in this cluster, or in a new one on this machine; return its base URL.

    It returns when all engines answer. Raise InputError with one line if an engine cannot be started.
    """
    import ray
    from ray import serve
    from ray.exceptions import RayError

    from spac.serve.ray.replica import REFUSED

    try:
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        serve.start(http_options={"host": host, "port": port})
        serve.run(application)
    except RayError as error:
        raise InputError(f"Ray Serve did not start: {str(error).splitlines()[0]}") from None
    except RuntimeError as error:
        line = re.search(rf"{REFUSED}(.*)", str(error) + _messages())
        raise InputError(line[1] if line else f"Ray Serve: {str(error).splitlines()[0]}") from None
    return f"http://{host}:{port}/v1"
