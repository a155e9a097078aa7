"""Reads and checks a recording; an invalid one raises InputError with one line."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.stats.recording import COLUMNS, FORMAT, SCHEMA

Matrix = Int32Array
LIMIT = 2**63
MATRICES = ("demand", "resident", "arrivals")
CURVE = ("tokens", "cycle_s", "compute_s", "missed", "theta")
LAYER_COSTS = ("host_ns", "wait_ns", "host_activations", "device_activations")


@dataclass(frozen=True)
class Recording:
    """A recording whose parts have the shapes that `spac.stats.recording` describes."""

    content: Mapping[str, Any]
    """The whole content of the file."""
    matrices: Mapping[str, Matrix]
    """The matrices demand, resident and arrivals, int32 [L, N]; empty without experts."""

    @property
    def stats(self) -> Mapping[str, Any]:
        """The run's statistics by name."""
        return dict(self.content["stats"])

    def figure(self, name: str) -> float | None:
        """Return a number of the statistics; None if there is no number of this name."""
        value = self.content["stats"].get(name)
        return value if _is_number(value) else None

    def word(self, name: str) -> str | None:
        """Return a string of the statistics; None if there is no string of this name."""
        value = self.content["stats"].get(name)
        return value if isinstance(value, str) else None

    def total(self, column: str) -> float:
        """Return a column's sum over all steps."""
        return float(sum(self.content["steps"]["columns"][column]))


def read(name: str) -> Recording:
    """Return the recording in a file, or in stdin for "-"; raise InputError if it is invalid."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:  # a null character in the name raises ValueError
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse(data, "stdin" if name == "-" else name)


def parse(data: bytes, name: str) -> Recording:
    """Return the recording in `data`, which messages call `name`; raise InputError if it is invalid."""
    if not data.strip():
        raise InputError(f"{name} is empty: record a run with `spac run --record FILE`")
    try:
        content = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not valid JSON, or is only the beginning of it: {error}") from None
    check = _Check(name)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{name} is not a recording: make one with `spac run --record FILE`")
    if content.get("schema") != SCHEMA:
        raise InputError(
            f"{name} is a recording of schema {content.get('schema')!r}; this spac reads schema {SCHEMA}: "
            "record the run again, or use the spac that recorded it"
        )
    return check.recording(content)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


class _Check:
    """Checks a recording part by part; every failure raises an InputError that names the part."""

    def __init__(self, name: str) -> None:
        self._name = name

    def recording(self, content: dict[str, Any]) -> Recording:
        for part in ("started", "experts", "thresholds", "governor", "device"):
            if part not in content:
                self._fail(part)
        self._stats(self._mapping(content, "stats"))
        self._steps(self._mapping(content, "steps"))
        lengths = self._mapping(content, "lengths")
        n_length = len(self._numbers(lengths.get("steps"), "lengths.steps"))
        for part in ("tokens", "time_ns"):
            self._numbers(lengths.get(part), f"lengths.{part}", n_length)
        matrices: dict[str, Matrix] = {}
        n_layer = 0
        if content.get("experts") is not None:
            matrices = self._experts(self._mapping(content, "experts"))
            n_layer = len(matrices["demand"])
        if content.get("thresholds") is not None:
            self._table(self._mapping(content, "thresholds"), "thresholds", "sums", n_layer)
        if content.get("governor") is not None:
            self._governor(self._mapping(content, "governor"))
        for part, kinds in (("version", str), ("started", str | None), ("device", str | None)):
            if not isinstance(content.get(part), kinds):
                self._fail(part)
        return Recording(content, matrices)

    def _fail(self, part: str) -> NoReturn:
        raise InputError(f"{self._name} is damaged: {part} is missing or invalid; record the run again")

    def _mapping(self, parent: dict[str, Any], part: str) -> dict[str, Any]:
        value = parent.get(part)
        return value if isinstance(value, dict) else self._fail(part)

    def _numbers(self, value: Any, part: str, length: int | None = None, low: float = 0) -> list[float]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            self._fail(part)
        for each in value:
            if not _is_number(each) or each < low:
                self._fail(part)
        return value

    def _counts(self, values: list[float], part: str) -> None:
        if not all(isinstance(value, int) and value >= 1 for value in values):
            self._fail(part)

    def _whole(self, parent: dict[str, Any], part: str, name: str, low: int = 0) -> int:
        value = parent.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**53:
            self._fail(f"{part}.{name}")
        return value

    def _stats(self, stats: dict[str, Any]) -> None:
        """Check that figures are numbers, strings, booleans, null, or lists and mappings of these.

        The set of figures may differ between versions.
        """
        for name, value in stats.items():
            if not _is_plain(value, 4):
                self._fail(f"stats.{name}")
        if not isinstance(stats.get("target"), str) or not isinstance(stats.get("scheduler"), str):
            self._fail("stats")

    def _steps(self, steps: dict[str, Any]) -> None:
        self._whole(steps, "steps", "per_row", 1)
        columns = self._mapping(steps, "columns")
        n_row = len(self._numbers(columns.get("steps"), "steps.steps"))
        columns.setdefault("sequences", columns["steps"])  # Older recordings are of one generation.
        for name in COLUMNS:
            self._numbers(columns.get(name), f"steps.{name}", n_row)
        self._counts(columns["steps"], "steps.steps")

    def _experts(self, experts: dict[str, Any]) -> dict[str, Matrix]:
        layers = experts.get("layers")
        if not isinstance(layers, list) or not layers:
            self._fail("experts.layers")
        n_expert = self._whole(experts, "experts", "n_expert", 1)
        devices = experts.setdefault("devices", [""])  # Older recordings are of one device.
        if not isinstance(devices, list) or not all(isinstance(name, str) for name in devices):
            self._fail("experts.devices")
        for layer in layers:
            if not isinstance(layer, dict) or not isinstance(layer.get("name"), str):
                self._fail("experts.layers")
            layer.setdefault("device", 0)
            for name in ("n_used", "expert_bytes", "pool", "device"):
                self._whole(layer, "experts.layers", name)
            if layer["device"] >= len(devices):
                self._fail("experts.layers")
            if self._whole(layer, "experts.layers", "n_expert", 1) > n_expert:
                self._fail("experts.layers")
        pool_slots = self._numbers(experts.get("pool_slots"), "experts.pool_slots")
        of_layers = all(layer["pool"] < len(pool_slots) for layer in layers)
        if not of_layers or any(count != int(count) for count in pool_slots):
            self._fail("experts.pool_slots")
        self._whole(experts, "experts", "looks")
        by_layer = self._mapping(experts, "by_layer")
        for name in {*by_layer, *(LAYER_COSTS if by_layer else ())}:
            self._numbers(by_layer.get(name), f"experts.by_layer.{name}", len(layers))
        return {name: self._matrix(experts, name, len(layers), n_expert) for name in MATRICES}

    def _matrix(self, experts: dict[str, Any], name: str, n_layer: int, n_expert: int) -> Matrix:
        try:
            data = base64.b64decode(experts.get(name, ""), validate=True)
        except (binascii.Error, ValueError, TypeError):
            self._fail(f"experts.{name}")
        if len(data) != 4 * n_layer * n_expert:
            self._fail(f"experts.{name}")
        matrix = np.frombuffer(data, "<i4").reshape(n_layer, n_expert)
        return matrix if (matrix >= 0).all() else self._fail(f"experts.{name}")

    def _table(self, parent: dict[str, Any], part: str, name: str, width: int, low: float = 0) -> None:
        self._whole(parent, part, "per_row", 1)
        steps, rows = self._numbers(parent.get("steps"), f"{part}.steps"), parent.get(name)
        self._counts(steps, f"{part}.steps")
        if not isinstance(rows, list) or len(rows) != len(steps):
            self._fail(f"{part}.{name}")
        for row in rows:
            self._numbers(row, f"{part}.{name}", width, low)
        if part == "thresholds":
            self._whole(parent, part, "levels")

    def _governor(self, governor: dict[str, Any]) -> None:
        if not isinstance(governor.get("name"), str):
            self._fail("governor.name")
        if governor.get("curve") is None:
            return
        curve = self._mapping(governor, "curve")
        # A model of few and noisy observations may have any values, negative ones too.
        n = len(self._numbers(curve.get("theta"), "governor.curve.theta", low=-LIMIT))
        for name in CURVE:
            self._numbers(curve.get(name), f"governor.curve.{name}", n, low=-LIMIT)
        self._table(governor, "governor", "theta", n, low=-LIMIT)


def _is_number(value: Any) -> bool:
    """Return True for a number that is small enough for sums of thousands of them."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LIMIT


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, dict | list):
        values = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(each, depth - 1) for each in values)
    return value is None or isinstance(value, str | bool) or _is_number(value)
