"""The projector of a model, and prompts with images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError, OutOfMemoryError, SpacError
from spac.machine.device_memory import shortage
from spac.model.c_api import Model
from spac.model.gguf.check import check_projector

PLACE = "<__media__>"
"""The text that stands for an image in a prompt, as in llama.cpp's programs."""
NO_PROJECTOR = "this model sees no images: start with --mmproj FILE, its projector"


def open_projector(
    config: EngineConfig, target: Model, n_embd: int, device: _core.DeviceInfo | None, threads: int
) -> _core.Projector:
    """Load the projector of `target`, which has embeddings of `n_embd` numbers and is closed after it.

    Its weights and its compute buffers are on the device unless `--no-mmproj-offload` is given. Raises
    InputError, OutOfMemoryError or SpacError with one line.
    """
    path = Path(config.mmproj or "")
    check_projector(path, n_embd)
    _core.take_memory_refusal()  # one of an earlier attempt
    on_device = device is not None and config.mmproj_offload
    try:
        projector = _core.Projector(
            os.fsencode(path),
            target.pointer,
            device.name if device is not None and on_device else "",
            n_threads=threads,
            image_min_tokens=config.image_min_tokens or -1,
            image_max_tokens=config.image_max_tokens or -1,
            marker=_core.ServerLoop.media_marker(),  # another one in every process
        )
    except SpacError as error:
        _check_memory(path)
        raise type(error)(f"{path}: {error}") from None
    _check_memory(path)  # The library does not report that compute buffers could not be allocated.
    return projector


def _check_memory(path: Path) -> None:
    if short := _core.take_memory_refusal():
        raise OutOfMemoryError(
            f"{path}: {shortage(*short)}; --no-mmproj-offload keeps the projector out of it"
        )


def image_prompt(projector: _core.Projector | None, text: str, images: Sequence[bytes]) -> _core.ImagePrompt:
    """Return the prompt of a text in which `PLACE` or the projector's own marker stands for each image.

    Images stand before a text that has no such place. Raises InputError if the model sees no images, if there
    are more or fewer places than images, and for an image that cannot be decoded.
    """
    if projector is None:
        raise InputError(NO_PROJECTOR)
    if projector.marker not in text:
        n_places = text.count(PLACE)
        if n_places == 0:
            text = projector.marker * len(images) + text
        elif n_places != len(images):
            raise InputError(
                f"the prompt has {n_places} places for images ({PLACE}), and {len(images)} are given"
            )
        else:
            text = text.replace(PLACE, projector.marker)
    return projector.tokenize(text.encode("utf-8", "surrogateescape"), list(images))
