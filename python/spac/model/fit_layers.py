"""`--gpu-layers auto`: as many layers on the device as it has room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spac.config import EngineConfig
from spac.errors import OutOfMemoryError


def load_what_fits(
    config: EngineConfig, n_layer: int, load: Callable[[EngineConfig], None], unload: Callable[[], None]
) -> None:
    """`load(config)`; where that is too much for the device, and the number of layers is left open, with the
    largest number that is not. That is found by loading, which alone knows all that a context takes.

    `unload` undoes what a `load` has done, whether it ended well or not. Raises what `load` raises.
    """
    try:
        load(config)
        return
    except OutOfMemoryError:
        if config.gpu_layers != "auto":
            raise
        unload()
    fits, too_many, loaded = 0, n_layer + 1, -1
    while too_many - fits > 1:
        tried = (fits + too_many) // 2
        try:
            if loaded >= 0:
                unload()
            loaded = -1
            load(replace(config, gpu_layers=tried))
            fits = loaded = tried
        except OutOfMemoryError:
            unload()
            too_many = tried
    if loaded != fits:
        if loaded >= 0:
            unload()
        load(replace(config, gpu_layers=fits))
