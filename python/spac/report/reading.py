"""Reads a recording; a file that is none, or is damaged, raises InputError with one line."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.stats.recording import FORMAT, REPORT, SCHEMA

MATRICES = ("demand", "resident", "arrivals")


@dataclass(frozen=True)
class Recording:
    """The report of a recording, whose parts `spac.stats.recording` describes."""

    content: Mapping[str, Any]
    """The whole content of the report."""

    @property
    def stats(self) -> Mapping[str, Any]:
        """The run's statistics by name."""
        stats: Mapping[str, Any] = self.content["stats"]
        return stats

    def matrix(self, name: str) -> Int32Array:
        """Return one of the matrices of experts (`MATRICES`), int32 [L, N]."""
        experts = self.content["experts"]
        data = np.frombuffer(base64.b64decode(experts[name]), "<i4")
        return data.reshape(len(experts["layers"]), experts["n_expert"])

    def total(self, column: str) -> float:
        """Return a column's sum over all steps."""
        return float(sum(self.content["steps"]["columns"][column]))


def read(name: str) -> Recording:
    """Return the recording in a file, or in stdin for "-"; raise InputError if it is invalid.

    The archive has a checksum of the report, so its parts are not checked one by one.
    """
    title = "stdin" if name == "-" else name
    try:
        with zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()) if name == "-" else name) as file:
            content = json.loads(file.read(REPORT))
    except (OSError, ValueError) as error:  # a null character in the name raises ValueError
        raise InputError(f"{title}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(
            f"{title} is not a recording, or is damaged: make one with `spac run --record FILE.npz`"
        )
    if content.get("schema") != SCHEMA:
        raise InputError(
            f"{title} is a recording of schema {content.get('schema')!r}; this spac reads schema {SCHEMA}: "
            "record the run again, or use the spac that recorded it"
        )
    return Recording(content)
