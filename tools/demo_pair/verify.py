"""Check the GGUF files with the real llama.cpp against torch: tokens, likelihood, text.

It needs ``llama-cpp-python``. The library is found through ``LLAMA_CPP_LIB_PATH`` as usual.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from llama_cpp import Llama

from . import tokenizer
from .config import CONTEXT_LENGTH
from .data import Stream, load, split
from .train import load_model

_TOKENS_COMPARED = 8192


def token_differences(llama: Llama, encoder: tokenizer.Tokenizer, texts: list[str]) -> int:
    """Return the number of ``texts`` that llama.cpp and the training's tokenizer cut or join differently."""
    different = 0
    for text in texts:
        expected = encoder.encode(text).ids
        actual = llama.tokenize(text.encode(), add_bos=False, special=False)
        joined = llama.detokenize(actual) == text.encode()
        different += actual != expected or not joined
    return different


def _mean_loss(scores: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(scores.double(), wanted))


@torch.no_grad()
def losses(llama: Llama, checkpoint: Path, tokens: np.ndarray) -> tuple[float, float]:
    """Return the mean negative log likelihood in llama.cpp and in torch over the same windows."""
    model, _ = load_model(checkpoint)
    window, ours, theirs = llama.n_ctx(), [], []
    for first in range(0, len(tokens) - window, window):
        part = tokens[first : first + window].astype(np.int64)
        wanted = torch.from_numpy(part[1:])
        llama.reset()
        llama.eval(part.tolist())
        theirs.append(_mean_loss(torch.from_numpy(llama.scores[: window - 1].copy()), wanted))
        features, _ = model.features(torch.from_numpy(part).unsqueeze(0), dtype=torch.float32)
        ours.append(_mean_loss(model.logits(features)[0, :-1], wanted))
    return float(np.mean(theirs)), float(np.mean(ours))


def main() -> None:
    """Run the command line of the check. It fails when something differs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--models", type=Path, default=Path("python/spac/demo"))
    args = parser.parse_args()
    torch.set_num_threads(2)
    encoder = tokenizer.load(args.work / "tokenizer.json")
    held_out = Stream.load(args.work / "held_out.npz")
    texts = [document.text for document in split(load())[1]]
    for name in ("target", "draft"):
        path = args.models / f"{name}.gguf"
        llama = Llama(str(path), n_ctx=CONTEXT_LENGTH, logits_all=True, n_threads=2, verbose=False)
        different = token_differences(llama, encoder, texts)
        theirs, ours = losses(llama, args.work / f"{name}.pt", held_out.tokens[: _TOKENS_COMPARED + 1])
        print(
            f"{name}: {different} of {len(texts)} texts cut differently; "
            f"loss {theirs:.4f} in llama.cpp, {ours:.4f} in torch"
        )
        if different or abs(theirs - ours) > 0.02:
            raise SystemExit(f"{path} differs from its checkpoint")


if __name__ == "__main__":
    main()
