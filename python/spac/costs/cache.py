"""The cache of measured costs between runs.

It has one file for each combination of machine, models and library, in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from spac import _core, env
from spac.costs.estimator import EAGER, CostEstimator
from spac.costs.model import Costs
from spac.errors import InputError
from spac.machine.cpu import cpu_description
from spac.machine.device_memory import simulated_index
from spac.machine.files import check_writable, read_plain, write_atomically

if TYPE_CHECKING:
    import spac._core as _core

_READ = 1 << 20  # bytes read from each end of a model's file: its header and some of its weights


class Loaded(Protocol):
    """A model whose file is known (`spac.model.c_api.Model`)."""

    @property
    def path(self) -> Path:
        """The model's file."""


class Placed(Protocol):
    """The part of a placement on which costs depend (`spac.model.placement.Placement`)."""

    @property
    def device(self) -> _core.DeviceInfo | None:
        """The main device; None on the CPU."""

    @property
    def devices(self) -> tuple[_core.DeviceInfo, ...]:
        """The devices that share the layers and hold their slots; none on the CPU."""

    @property
    def threads(self) -> int:
        """The number of CPU threads that compute a token."""


class Pair(Protocol):
    """The part of a pair of loaded models on which costs depend (`spac.model.pair.ModelPair`)."""

    @property
    def placement(self) -> Placed:
        """The models' placement."""

    @property
    def target(self) -> Loaded:
        """The target."""

    @property
    def draft(self) -> Loaded | None:
        """The draft; None without one."""

    @property
    def experts(self) -> _core.Experts | None:
        """The target's experts; None without the split."""

    @property
    def setup(self) -> str:
        """A text of the settings that change the costs of these files; "" if there are none."""


@dataclass(frozen=True)
class Key:
    """Everything on which costs depend; costs with another key are not used."""

    cpu: str
    threads: int
    device: str
    target: str
    draft: str
    library: str

    @classmethod
    def of(cls, pair: Pair) -> Key:
        """Return the key of a pair, or raise InputError if a model's file cannot be read."""
        device, place = "cpu", pair.placement
        if place.device is not None:
            others = [each for each in place.devices if each.name != place.device.name]
            device = "; ".join(map(_described, (place.device, *others)))
        return cls(
            cpu=cpu_description(),
            threads=place.threads,
            device=device + pair.setup,
            target=fingerprint(pair.target.path),
            draft=fingerprint(pair.draft.path) if pair.draft is not None else "none",
            library=_library(),
        )

    @property
    def path(self) -> Path:
        """The path of this key's file, which may not exist."""
        text = json.dumps(asdict(self), sort_keys=True)
        return env.cache_folder() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _described(device: _core.DeviceInfo) -> str:
    """Return a description of a device, with a simulated one's settings."""
    text = f"{device.name}, {device.description}, {device.memory_total >> 20} MiB"
    if (index := simulated_index(device.name)) is not None:
        settings = sorted(_core.simulated_device(index).items())
        text += "".join(f", {name} {value:g}" for name, value in settings if value)
    return text


def _library() -> str:
    """Return a description of the library and its kernels."""
    n_ours = len(_core.trusted_cpu_kernels()) if _core.cpu_kernels_enabled() else 0
    llama = _core.llama_cpp_python_version
    return f"{_core.__version__}, llama-cpp-python {llama}, {n_ours} CPU kernels"


def fingerprint(path: Path) -> str:
    """Return the size of a model's file and a hash of its beginning and its end.

    The rest of the file is not read. Raise InputError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_READ))
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ))
            digest.update(file.read(_READ))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return f"{size}-{digest.hexdigest()[:24]}"


def newest(target: Path, device: str) -> Costs | None:
    """Return the costs that were last stored for a target on a device of this machine; None without any.

    The draft, the threads and the other settings may be any.
    """
    wanted = {"cpu": cpu_description(), "target": fingerprint(target), "library": _library()}
    found = sorted((env.cache_folder() / "costs").glob("*.json"), key=lambda path: -path.stat().st_mtime)
    for path in found:
        try:
            key = Key(**json.loads(read_plain(path))["key"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        same = all(getattr(key, name) == value for name, value in wanted.items())
        if same and key.device.split(",")[0] == device and (costs := load(key)) is not None:
            return costs
    return None


def load(key: Key) -> Costs | None:
    """Return the costs stored for this key, or None if there are none that can be used."""
    try:
        stored: Any = json.loads(read_plain(key.path))
        if stored["key"] != asdict(key):
            return None
        return Costs.from_json(json.dumps(stored["costs"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # InputError is a ValueError
        return None


def store(key: Key, costs: Costs) -> None:
    """Store costs for the next run, or raise InputError if the cache folder cannot be written."""
    make_folder(key.path.parent)
    stored = {"key": asdict(key), "costs": json.loads(costs.to_json())}
    write_atomically(key.path, json.dumps(stored, indent=1).encode())


def check(key: Key) -> None:
    """Raise InputError if `store` would raise it."""
    make_folder(key.path.parent)
    check_writable(key.path.with_suffix(".check"))


def make_folder(path: Path) -> None:
    """Make a folder of the cache with its parents, or raise InputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from None


_LEAST_TOKENS, _MOST_TOKENS = 32, 1024
"""The fewest steps of one token that are kept without the split, and the last ones that count."""


class CostsInUse:
    """The costs of one engine, which are corrected from its start to its end."""

    def __init__(self, pair: Pair, n_tokens: int) -> None:
        """Load the costs of the last run, or guess them.

        `pair` has experts to split. `n_tokens` is the number of tokens in the largest verification. Raise
        InputError if a model's file cannot be read.
        """
        assert pair.experts is not None
        layers = pair.experts.layers
        self._key = Key.of(pair)
        self.note = ""
        """A note for the user, or ""."""
        try:
            check(self._key)
        except InputError as error:
            self.note = f"measured costs are not kept for the next run: {error}"
        known = load(self._key)
        self.measured = known is not None
        """True if the costs at the start were measured in an earlier run."""
        guess = Costs.guessed(layers, n_tokens)
        start = known if known is not None else guess
        self._spares, self._hand_off_s = spares_hand_offs(pair), start.hand_off_s
        if not self._spares:  # A whole layer saves no hand-off here, so no plan should count on it.
            start, guess = replace(start, hand_off_s=0.0), replace(guess, hand_off_s=0.0)
        try:
            self.estimator = CostEstimator(start.up_to(n_tokens), layers, measured=self.measured)
        except InputError:  # The stored costs are for another split of the file.
            self.measured = False
            self.estimator = CostEstimator(guess, layers, measured=False)

    def observe(self, step: _core.Step, n_asked: int) -> None:
        """Learn from a step that has ended, which was asked for a draft of `n_asked` tokens."""
        self.estimator.observe_step(step, n_asked)

    def close(self) -> None:
        """Store the learned costs, unless `note` says that they cannot be kept."""
        if self.estimator.steps >= EAGER and not self.note:
            try:
                costs = self.estimator.costs
                if not self._spares:
                    costs = replace(costs, hand_off_s=self._hand_off_s)
                store(self._key, costs)
            except InputError as error:
                self.note = f"measured costs are not kept for the next run: {error}"


class TokenTime:
    """The time of a token of a model that runs without the split, kept for `spac models`."""

    def __init__(self, pair: Pair) -> None:
        """Follow a pair that has no experts to split."""
        self._pair = pair
        self._seconds = deque[float](maxlen=_MOST_TOKENS)

    def observe(self, step: _core.Step) -> None:
        """Learn from a step that has ended, if it evaluated one token."""
        if step.n_verified == 1:
            self._seconds.append((step.verify_ns + step.sample_ns) * 1e-9)

    def close(self) -> None:
        """Store the median time, if there are enough. A cache that cannot be written keeps none."""
        if len(self._seconds) >= _LEAST_TOKENS:
            times = (median(self._seconds),)
            with suppress(InputError):
                store(Key.of(self._pair), Costs((), 0.0, 0.0, times, times))


def spares_hand_offs(pair: Pair) -> bool:
    """Return True if a layer whose experts are all resident runs without the CPU."""
    device, chosen = pair.placement.device, env.FORM.get("masks")
    return device is None or (device.reads_masks if chosen is None else chosen)
