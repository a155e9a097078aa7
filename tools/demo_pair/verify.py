"""Check the GGUF files with the real llama.cpp against torch: tokens, likelihood, text.

It needs ``llama-cpp-python``. The library is found through ``LLAMA_CPP_LIB_PATH`` as usual.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from llama_cpp import Llama
from torch.nn.functional import cross_entropy

from .data import CONTEXT_LENGTH, Stream, load_tokenizer, texts_of
from .model import LanguageModel
from .stories import stories

_TOKENS_COMPARED = 8192


@torch.no_grad()
def losses(llama: Llama, model: LanguageModel, tokens: np.ndarray) -> tuple[float, float]:
    """Return the mean negative log likelihood in llama.cpp and in torch over the same windows."""
    window, ours, theirs = llama.n_ctx(), [], []
    for first in range(0, len(tokens) - window, window):
        part = torch.from_numpy(tokens[first : first + window].astype(np.int64))
        llama.reset()
        llama.eval(part.tolist())
        theirs.append(cross_entropy(torch.from_numpy(llama.scores[: window - 1].copy()), part[1:]))
        features, _ = model.features(part.unsqueeze(0), dtype=torch.float32)
        ours.append(cross_entropy(model.scores(features)[0, :-1], part[1:]))
    return float(np.mean(theirs)), float(np.mean(ours))


def main() -> None:
    """Run the command line of the check. It fails when something differs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--models", type=Path, default=Path("python/spac/demo"))
    args = parser.parse_args()
    torch.set_num_threads(2)
    encoder, held_out = load_tokenizer(args.work), Stream.load(args.work / "held_out.npz")
    _, texts = texts_of(stories(args.work / "stories", 1))
    for name in ("target", "draft"):
        path = args.models / f"{name}.gguf"
        llama = Llama(str(path), n_ctx=CONTEXT_LENGTH, logits_all=True, n_threads=2, verbose=False)
        cut = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
        n_different = sum(
            tokens != encoder.encode(text).ids or llama.detokenize(tokens, special=True) != text.encode()
            for text, tokens in zip(texts, cut, strict=True)
        )
        model, _ = LanguageModel.load(args.work / f"{name}.pt")
        theirs, ours = losses(llama, model, held_out.tokens[: _TOKENS_COMPARED + 1])
        print(
            f"{name}: {n_different} of {len(texts)} texts cut differently; "
            f"loss {theirs:.4f} in llama.cpp, {ours:.4f} in torch"
        )
        if n_different or abs(theirs - ours) > 0.02:
            raise SystemExit(f"{path} differs from its checkpoint")


if __name__ == "__main__":
    main()
