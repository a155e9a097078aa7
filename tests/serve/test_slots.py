"""llama-server's slots: listed, saved, restored and erased, with one request at a time and with several."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Server

TEXT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return "
OTHER = "The sea was grey, and a man walked along its edge, counting boats."


@pytest.fixture(scope="module", params=["1", "3"])
def saving(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("slots")
    options = ["--parallel", request.param, "--ctx", "768", "--temp", "0", "--cache-ram", "0", "--no-page"]
    server = Server(folder, *options, "--slot-save-path", str(folder))
    yield server, folder
    assert server.stop() == 0


def ask(server: Server, action: str, slot: int = 0, **fields: Any) -> tuple[int, dict[str, Any]]:
    status, body = server.ask("POST", f"/slots/{slot}?action={action}", fields)
    return status, json.loads(body)


def complete(server: Server, prompt: str) -> tuple[str, int]:
    """Return the text that follows a prompt, and how many tokens of the prompt were cached."""
    body = {"prompt": prompt, "max_tokens": 8}
    made = json.loads(server.ask("POST", "/v1/completions", body)[1])
    return made["choices"][0]["text"], made["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask_for(server: Server, prompt: str) -> tuple[int, bytes]:
    return server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8})


def listed(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(server.ask("GET", "/slots")[1])
    return found


def test_a_saved_slot_comes_back(saving: tuple[Server, Path]) -> None:
    server, folder = saving
    text, _ = complete(server, TEXT)
    slot = max(listed(server), key=lambda each: each.get("id_task", -1))["id"]
    status, saved = ask(server, "save", slot, filename="one.bin")
    assert status == 200, saved
    assert saved["n_written"] == (folder / "one.bin").stat().st_size
    for each in listed(server):
        assert ask(server, "erase", each["id"])[0] == 200
    assert complete(server, TEXT) == (text, 0)
    for each in listed(server):
        ask(server, "erase", each["id"])
    complete(server, OTHER)
    last = len(listed(server)) - 1
    status, restored = ask(server, "restore", last, filename="one.bin")
    assert (status, restored["n_restored"], restored["n_read"]) == (200, saved["n_saved"], saved["n_written"])
    again, n_cached = complete(server, TEXT)
    assert again == text
    assert n_cached > 10


def test_what_is_no_slots_file_is_refused(saving: tuple[Server, Path]) -> None:
    server, folder = saving
    text, _ = complete(server, TEXT)
    assert ask(server, "save", 0, filename="good.bin")[0] == 200
    (folder / "foreign.bin").write_bytes(b"GGUF of something else")
    (folder / "cut.bin").write_bytes((folder / "good.bin").read_bytes()[:-5])
    for name in ("foreign.bin", "cut.bin", "none.bin", "../good.bin", ""):
        status, answer = ask(server, "restore", 0, filename=name)
        assert status == 400, (name, answer)
    assert ask(server, "move", 0, filename="x.bin")[0] == 400
    assert complete(server, TEXT)[0] == text


def test_slots_without_a_folder_have_no_files(server: Server) -> None:
    status, answer = ask(server, "save", filename="x.bin")
    assert (status, "--slot-save-path" in answer["error"]["message"]) == (501, True)
    assert [each["id"] for each in listed(server)] == [0]


def test_files_that_never_end_and_places_that_no_text_has(saving: tuple[Server, Path]) -> None:
    server, folder = saving
    text, _ = complete(server, TEXT)
    slot = max(listed(server), key=lambda each: each.get("id_task", -1))["id"]
    status, saved = ask(server, "save", slot, filename="whole.bin")
    assert status == 200, saved
    data = (folder / "whole.bin").read_bytes()
    n_tokens = int(saved["n_saved"])
    cells = data[12 + 4 * n_tokens :]
    for token in (n_tokens - 1, n_tokens - 2):
        at = len(data) - len(cells) + cells.index(struct.pack("<i", token))
        for position in (2**31 - 1, -1, -(2**31), n_tokens + 5):
            (folder / "odd.bin").write_bytes(data[:at] + struct.pack("<i", position) + data[at + 4 :])
            status, answer = ask(server, "restore", slot, filename="odd.bin")
            assert status == 400, (position, answer)
            status, answer = ask_for(server, OTHER)
            assert status == 200, (token, position, answer)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/full")
    for name in ("pipe", "link"):
        assert ask(server, "restore", slot, filename=name)[0] == 400
        assert ask(server, "save", slot, filename=name)[0] >= 400
    assert (folder / "pipe").is_fifo()
    assert complete(server, TEXT)[0] == text
