"""Define the job of one cell of the comparison and its result: plain data, as JSON between processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

FOLLOW_UP = 200  # tokens that follow an answer, as in a chat
N_FOLLOW_UPS = 3  # of the last prompt
FOLLOW_UP_ROOM = N_FOLLOW_UPS * (FOLLOW_UP + 1)  # tokens of context that they and their first tokens take
NO_GPU = ("cpu", "simulated", "stand-in")  # devices that are not a GPU
PIECE = 32  # tokens evaluated at a time for likelihoods: too few to stream experts, so the split is measured


class _Json:
    """Data that can be read from and written to a file."""

    @classmethod
    def read(cls, path: Path) -> Self:
        values = json.loads(path.read_text())
        names = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        return cls(**{key: value for key, value in values.items() if key in names})

    def write(self, path: Path) -> None:
        """Write the file in one step: a file that exists is complete."""
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(self)) + "\n")  # type: ignore[call-overload]
        unfinished.replace(path)


@dataclass(frozen=True)
class Job(_Json):
    """One engine on one setting. The first prompt runs cold, the others warm."""

    kind: str  # "llama.cpp", "peer", "spac"; "likelihoods" of either library
    target: str
    prompts: list[list[int]]
    n_predict: int
    ctx: int
    threads: int  # 0: the peer chooses
    device: str  # a GPU's name, "simulated", or "cpu"
    draft: str | None = None
    draft_length: int = 0
    n_cpu_moe: int | None = None  # llama.cpp: layers whose experts stay on the CPU; None: no override
    slots: str = "0"  # spac
    scheduler: str = "lru"
    governor: bool = False  # spac: the governor chooses the draft length
    lookahead: int | None = None  # spac; None: its default
    no_host: bool = False  # llama.cpp: no pinned buffers, which the loader prefers to repacked weights
    paging: str = "auto"  # spac
    command: str = ""  # a peer's command line, with its {names}
    texts: list[str] = field(default_factory=list)  # the prompts as text, for a peer

    def follow_ups(self, n_tokens: int) -> list[list[int]]:
        """Return follow-ups of the last prompt, behind a text of `n_tokens` tokens, if they fit the context.

        Each has the tokens of the prompt, from its beginning, again and again.
        """
        if n_tokens + FOLLOW_UP_ROOM > self.ctx:
            return []
        prompt = self.prompts[-1]
        return [[prompt[i % len(prompt)] for i in range(FOLLOW_UP)]] * N_FOLLOW_UPS


@dataclass(frozen=True)
class Run:
    """One prompt and its answer.

    In spac, the first token comes with the prompt. In the other loops, it comes with the first step.
    """

    prompt_tokens: int
    prefill_s: float
    first_token_s: float
    decode_s: float
    tokens: list[int]
    steps: int
    drafted: int = 0
    accepted: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)  # where the time went; spac's statistics
    text: str = ""  # a peer's answer, for which no token ids are known
    counted: int | None = None  # the number of tokens that `decode_s` and the steps made; None: all `tokens`

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens that were decoded."""
        return len(self.tokens) if self.counted is None else self.counted

    @property
    def decode_speed(self) -> float:
        return self.n_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def prefill_speed(self) -> float:
        return self.prompt_tokens / self.prefill_s if self.prefill_s else 0.0


@dataclass(frozen=True)
class Result(_Json):
    """The result of a cell. `error` is set when it failed."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    load_s: float = 0.0
    peak_ram: int = 0  # bytes, with the pages of mapped files
    peak_vram: int | None = None  # bytes on the device while it ran, beyond those in use before
    surprises: list[float] = field(default_factory=list)  # −log p of each token
    bound: float | None = None  # spac: Belady's rate of hits of distinct experts, over all steps
    threads: int = 0
    paged: bool | None = None  # spac: True if experts were read from the file when they were needed
    pinned_bytes: int | None = None  # spac: pinned bytes of host memory; None where nobody counted
    host_memory: str = ""  # spac: how experts lay in host memory
    # seconds to the first token of follow-ups of the last prompt; empty for peers
    follow_ups_s: list[float] = field(default_factory=list)
    error: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def each(self) -> list[Run]:
        return [Run(**run) for run in self.runs]

    @property
    def warm(self) -> Sequence[Run]:
        """Return all runs but the first, which meets empty slots and perhaps guessed unit costs."""
        return self.each[1:]


def pieces(tokens: Sequence[int]) -> list[tuple[int, Sequence[int], Sequence[int]]]:
    """Return the position, the tokens and those that follow each, for every piece that is evaluated."""
    return [
        (start, tokens[start : min(start + PIECE, len(tokens) - 1)], tokens[start + 1 : start + 1 + PIECE])
        for start in range(0, len(tokens) - 1, PIECE)
    ]


def surprises(logits: npt.NDArray[np.float32], following: Sequence[int]) -> list[float]:
    """Return −log p of each following token, from float [n, n_vocab] logits."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    total = np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak
    found: list[float] = (total - wide[np.arange(len(wide)), list(following)]).tolist()
    return found
