"""Experts lie in the mapping of the file where the loader maps it. Otherwise they are copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from spac import _core
from spac.model.c_api import Context, Model
from tools.models import Shape


def is_mapped(path: Path) -> bool:
    return any(line.endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize(
    ("mode", "memory", "mapped"),
    [(None, "staged", True), ("mmap", "staged", True), ("none", "pinned", False)],
)
def test_the_mapping_is_kept_where_there_is_one(tiny_model, mode, memory, mapped):
    from llama_cpp import llama_cpp as api

    path = tiny_model("qwen3moe", Shape())
    params = {} if mode is None else {"load_mode": api.llama_load_mode_from_str(mode.encode())}
    with _core.LoadScope() as scope:
        model = Model(path, [_core.device_handle("simulated")], params)
        context = Context(model, {"n_ctx": 64})
    try:
        assert scope.experts.host_memory == memory
        assert is_mapped(path) is mapped
        scope.experts.attach_slots(4)  # copies go through the staging ring, or straight from pinned memory
    finally:
        context.close()
        model.close()
    assert not is_mapped(path)
