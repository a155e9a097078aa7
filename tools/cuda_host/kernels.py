"""Print the kernels that a model's steps launch on the pretend card, in the library that llama_cpp loads.

That is spac's library with all experts resident, or the unpatched one with all layers on the card.

python -m tools.cuda_host.kernels MODEL LENGTH…: kernels by name for each length of a batch, as JSON
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np

from tools.compare.job import Case, Settings
from tools.cuda_host.worker import report


def kernels(path: str, lengths: list[int]) -> dict[int, dict[str, int]]:
    with ExitStack() as stack:
        scope: Any = None
        if "LLAMA_CPP_LIB_PATH" not in os.environ:
            from spac import _core  # before llama_cpp: importing spac chooses the library

            _core.set_default_device("CUDA0")
            _core.set_trust_device_masks(True)
            scope = stack.enter_context(_core.LoadScope())
        decoder = importlib.import_module("tools.compare.decoder")
        model = stack.enter_context(decoder.Model(Case("model", path, runs=()), on_device=True))
        context = stack.enter_context(model.context(Settings(flash_attn=True)))
        if scope is not None:
            experts = scope.experts
            experts.attach_slots(sum(layer.n_expert for layer in experts.layers))
            experts.submit(
                np.ones((experts.n_layer, experts.n_expert), np.int32), np.ones(experts.n_layer, np.int32)
            )
            assert experts.settle(30.0)
        position, found = 0, {}
        for length in lengths:
            before = report()["kernels"]
            tokens = np.arange(length, dtype=np.int32)
            context.decode(tokens, position, list(range(length)))
            found[length] = dict(report()["kernels"] - before)
            position += length
        return found


if __name__ == "__main__":
    print(json.dumps(kernels(sys.argv[1], [int(text) for text in sys.argv[2:]])))
