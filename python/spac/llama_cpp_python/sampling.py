"""The translation of llama-cpp-python's sampling arguments for llama.cpp's loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spac import _core
from spac.config.grammar import from_root
from spac.llama_cpp_python.logprobs import Logprobs

RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED asks for a random seed.


class LogitBias:
    """A logits processor that adds `bias` to the logits of its tokens.

    llama.cpp's loop takes the bias itself.
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        self.bias = {int(token): float(value) for token, value in bias.items()}

    def __call__(
        self, _input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        """Return the scores with the bias added."""
        biased = scores.copy()
        for token, value in self.bias.items():
            biased[token] += value
        return biased


class ChatGrammar:
    """A `grammar` argument that makes the answer follow a chat's format.

    llama_cpp's own loop does not support this, and gets `instead`.
    """

    def __init__(self, chat: _core.ChatPrompt, reasoning_budget: int, instead: Any = None) -> None:
        """Make the grammar of a chat prompt.

        `reasoning_budget` is the largest number of reasoning tokens, -1 for no limit. `instead` is a
        LlamaGrammar or None.
        """
        self.chat, self.reasoning_budget, self.instead = chat, reasoning_budget, instead


@dataclass(frozen=True)
class Sampling:
    """The arguments of `Llama.generate` that say how tokens are chosen.

    Their names are llama_cpp's.
    """

    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    temp: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    tfs_z: float
    mirostat_mode: int
    mirostat_eta: float
    mirostat_tau: float
    penalize_nl: bool
    logits_processor: Sequence[Any] | None
    grammar: Any

    @property
    def refusal(self) -> str:
        """The argument that llama.cpp's loop does not support, or "" if it supports all."""
        if any(not isinstance(each, LogitBias | Logprobs) for each in self.logits_processor or ()):
            return "a logits_processor"
        return ""

    @property
    def logprobs(self) -> Logprobs | None:
        """The recorder of log probabilities, or None if they are not asked for."""
        found = (each for each in self.logits_processor or () if isinstance(each, Logprobs))
        return next(found, None)

    def native(self, *, seed: int, last_n: int) -> dict[str, Any]:
        """Return the parameters of `_core.ServerLoop.generate` for the chain that llama_cpp would make.

        `seed` and `last_n` (the number of tokens that the penalties look back over) are the model's.
        llama_cpp accepts numbers outside of their meaningful range. They become the end of the range.
        """
        seed &= RANDOM_SEED
        return {
            "seed": None if seed == RANDOM_SEED else seed,
            "repeat_last_n": max(last_n, 0),
            "repeat_penalty": self.repeat_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "logit_bias": self._bias(),
            **self._constraint(),
            **self._chain(),
        }

    def _constraint(self) -> dict[str, Any]:
        if isinstance(self.grammar, ChatGrammar):
            return {"chat": self.grammar.chat, "reasoning_budget": self.grammar.reasoning_budget}
        if self.grammar is None:
            return {"grammar": ""}
        return {"grammar": from_root(self.grammar._grammar, getattr(self.grammar, "_root", "root"))}

    def _bias(self) -> dict[int, float]:
        total: dict[int, float] = {}
        biases = (each for each in self.logits_processor or () if isinstance(each, LogitBias))
        for processor in biases:
            for token, value in processor.bias.items():
                total[token] = total.get(token, 0.0) + value
        return total

    def _chain(self) -> dict[str, Any]:
        """Return the chain that llama_cpp's `_init_sampler` makes.

        Temperature 0 is greedy. The chain applies no temperature below 0, and none with Mirostat.
        """
        if self.temp == 0:
            return {"temp": 0.0, "samplers": ["penalties", "temperature"]}
        if self.temp < 0:
            return {"temp": 1.0, "samplers": ["penalties"]}
        if self.mirostat_mode in (1, 2):
            return {
                "temp": 1.0,
                "mirostat": self.mirostat_mode,
                "mirostat_lr": self.mirostat_eta,
                "mirostat_ent": self.mirostat_tau,
                "mirostat_penalizes": True,
            }
        return {
            "temp": self.temp,
            "top_k": max(self.top_k, 0),
            "typ_p": _probability(self.typical_p),
            "top_p": _probability(self.top_p),
            "min_p": _probability(self.min_p),
            "samplers": ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"],
        }


def check_grammar(model: int, grammar: Any) -> None:
    """Raise InputError if a LlamaGrammar for llama_cpp's own loop cannot be used, or exceeds a limit."""
    if grammar is not None:
        _core.check_grammar(model, grammar._grammar)


def _probability(value: float) -> float:
    return min(max(value, 0.0), 1.0)
