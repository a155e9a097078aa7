"""Traces of routing: the experts of every token, in the form in which they are exchanged.

A trace is a `.npz` archive without pickled objects:

    experts       whole numbers [token, layer, used]: the experts of every token in the order of decoding, -1
                  where a layer uses fewer
    seq_len       whole numbers [sequence]: the tokens of every sequence, whose sum is the number of tokens
    n_expert      whole number: the experts of a layer
    expert_bytes  whole number, may be absent: the bytes of one expert

A step of a replay takes a window of tokens of one sequence: the tokens that a verification accepts.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.machine.files import write_atomically
from spac.replay import Demand
from spac.scheduler.base import Layer


@dataclass(frozen=True)
class Trace:
    """The routes of a model's tokens. Raise InputError for arrays that do not fit together."""

    experts: Int32Array
    """The experts of every token, int32 [T, L, U]; -1 where a layer uses fewer."""
    seq_len: Int32Array
    """The tokens of every sequence, int32 [S]."""
    n_expert: int
    """The number of experts of a layer."""
    expert_bytes: int = 0
    """The bytes of one expert; 0 if they are not known."""

    def __post_init__(self) -> None:
        experts, lengths = self.experts, self.seq_len
        if experts.ndim != 3 or 0 in experts.shape:
            raise InputError(f"experts must have the shape [token, layer, used], not {list(experts.shape)}")
        if lengths.ndim != 1 or (lengths < 0).any() or int(lengths.sum()) != len(experts):
            raise InputError(f"seq_len must be numbers of tokens whose sum is {len(experts)}")
        if int(experts.min()) < -1 or int(experts.max()) >= self.n_expert:
            raise InputError(
                f"experts must be numbers from -1 to {self.n_expert - 1}, "
                f"not {int(experts.min())} to {int(experts.max())}"
            )
        if (experts < 0).all(axis=2).any():
            raise InputError("experts must name at least one expert of every token and layer")

    @classmethod
    def of(cls, demand: Demand) -> Trace:
        """Return the trace of a recording: the routes of its accepted tokens.

        Each text is a sequence, where the recording tells them apart. Raise InputError for a recording
        without routes.
        """
        if demand.routes is None:
            raise InputError("this recording has no routes: record demand with routes")
        kept = np.arange(demand.routes.shape[2]) <= demand.accepted[:, None]
        experts = demand.routes.transpose(0, 2, 1, 3)[kept]
        n_expert, size = demand.counts.shape[2], max(layer.expert_bytes for layer in demand.layers)
        lengths = kept.sum(axis=1)  # tokens of every step
        if demand.texts is not None:
            lengths = np.add.reduceat(lengths, np.flatnonzero(np.diff(demand.texts, prepend=-1)))
        else:
            lengths = lengths.sum(keepdims=True)
        return cls(experts, lengths.astype(np.int32), n_expert, size)

    def last(self, n_token: int) -> Trace:
        """Return the trace of the last tokens. A sequence may lose its beginning."""
        left = np.cumsum(self.seq_len[::-1])[::-1]  # tokens from each sequence's first on
        lengths = np.minimum(self.seq_len, np.maximum(0, self.seq_len - (left - n_token)))
        kept = self.experts[max(0, len(self.experts) - n_token) :]
        return Trace(kept, lengths[lengths > 0].astype(np.int32), self.n_expert, self.expert_bytes)

    def demand(self, window: int = 1) -> Demand:
        """Return the demand of steps that each accept `window` tokens.

        The last step of a sequence may accept fewer. All layers share one pool.
        """
        n_token, n_layer, n_used = self.experts.shape
        firsts = [
            first
            for end, length in zip(np.cumsum(self.seq_len), self.seq_len, strict=True)
            for first in range(int(end - length), int(end), window)
        ]
        verified = np.diff([*firsts, n_token]).astype(np.int32)
        routes = np.full((len(firsts), n_layer, window, n_used), -1, np.int32)
        step = np.repeat(np.arange(len(firsts)), verified)
        routes[step, :, np.arange(n_token) - np.repeat(firsts, verified)] = self.experts
        counts = np.zeros((len(firsts), n_layer, self.n_expert), np.int32)
        at = np.nonzero(self.experts >= 0)
        np.add.at(counts, (step[at[0]], at[1], self.experts[at]), 1)
        layers = tuple(
            Layer(f"layer {i}", self.n_expert, n_used, self.expert_bytes or 1, 0) for i in range(n_layer)
        )
        text = np.repeat(np.arange(1, len(self.seq_len) + 1), self.seq_len)[firsts]
        return Demand(layers, counts, verified, verified - 1, routes, texts=text.astype(np.int32))

    def save(self, path: Path) -> None:
        """Write the trace, whole or not at all, or raise InputError."""
        data = io.BytesIO()
        np.savez_compressed(
            data, experts=self.experts.astype(np.int16), seq_len=self.seq_len, n_expert=self.n_expert,
            expert_bytes=self.expert_bytes,
        )  # fmt: skip
        write_atomically(path, data.getvalue())

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace, or a recording that `Demand.save` wrote. Raise InputError for another file."""
        try:
            with path.open("rb") as data, np.load(data, allow_pickle=False) as file:
                if "counts" not in file:
                    size = int(file["expert_bytes"]) if "expert_bytes" in file else 0
                    lengths = _whole(file["seq_len"], "seq_len")
                    return cls(_whole(file["experts"], "experts"), lengths, int(file["n_expert"]), size)
            return cls.of(Demand.load(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(
                f"{path} is not a trace, which is a .npz with experts, seq_len and n_expert: {error}"
            ) from None


def _whole(values: npt.NDArray[np.generic], name: str) -> Int32Array:
    if values.dtype.kind not in "iu":
        raise InputError(f"{name} must be whole numbers, not {values.dtype}")
    return values.astype(np.int32)
