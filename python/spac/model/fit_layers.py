"""The search for what fits: generations at once (`--parallel -1`) and layers (`--gpu-layers auto`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spac.config import EngineConfig
from spac.config.values import GpuLayers
from spac.errors import OutOfMemoryError


def load_what_fits(
    config: EngineConfig, n_layer: int, load: Callable[[EngineConfig], None], unload: Callable[[], None]
) -> None:
    """Call `load` with `config`, or with as much of it as fits.

    The split is tried first if `load` left it out. Fewer generations at once follow if `parallel` is -1, and
    then fewer layers if `gpu_layers` is auto. The number is found by loading, because only loading shows how
    much memory a context takes. `unload` undoes a `load`, also a failed one. Raises the errors of `load`.
    """
    try:
        load(config)
        return
    except OutOfMemoryError as error:
        unload()
        if error.whole:
            split = replace(config, keeps_split=f"the split stays, for without it {error}")
            load_what_fits(split, n_layer, load, unload)
            return
        if _load_fewer(config, load, unload):
            return
        if not config.gpu_layers.is_auto:
            raise
    fits, too_many, loaded = 0, n_layer + 1, -1
    while too_many - fits > 1:
        tried = (fits + too_many) // 2
        try:
            if loaded >= 0:
                unload()
            loaded = -1
            load(replace(config, gpu_layers=GpuLayers(tried)))
            fits = loaded = tried
        except OutOfMemoryError:
            unload()
            too_many = tried
    if loaded != fits:
        if loaded >= 0:
            unload()
        load(replace(config, gpu_layers=GpuLayers(fits)))


def _load_fewer(
    config: EngineConfig, load: Callable[[EngineConfig], None], unload: Callable[[], None]
) -> bool:
    """Load with fewer generations at once if the user gave no number. Return False if that does not fit."""
    n = config.n_parallel if config.parallel == -1 else 1
    while (n := n // 2) > 0:
        try:
            load(replace(config, most_parallel=n))
            return True
        except OutOfMemoryError:
            unload()
    return False
