"""llama-server's slots: listed, saved, restored and erased, with one request at a time and with several."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from tests.exact import PROMPTS
from tests.serve.conftest import Server

TEXT = PROMPTS[0]
OTHER = "The sea was grey, and a man walked along its edge, counting boats."


@pytest.fixture(scope="module")
def saving(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slots")
    options = ["--parallel", "3", "--ctx", "768", "--temp", "0", "--cache-ram", "0", "--no-page"]
    with Server(folder, *options, "--slot-save-path", str(folder)) as server:
        yield server, folder


def ask(server: Server, action: str, slot: int = 0, status: int = 200, **fields: Any) -> dict[str, Any]:
    return server.post(f"/slots/{slot}?action={action}", fields, status=status)


def complete(server: Server, prompt: str) -> tuple[str, int]:
    """Return the text that follows a prompt, and how many tokens of the prompt were cached."""
    made = server.post("/v1/completions", prompt=prompt, max_tokens=8)
    return made["choices"][0]["text"], made["usage"]["prompt_tokens_details"]["cached_tokens"]


def saved_as(name: str, server: Server) -> tuple[int, dict[str, Any]]:
    """Save the slot that was used last. Return it and the answer."""
    slot = max(server.get("/slots"), key=lambda each: each.get("id_task", -1))["id"]
    return slot, ask(server, "save", slot, filename=name)


def test_a_saved_slot_comes_back(saving):
    server, folder = saving
    text, _ = complete(server, TEXT)
    _, saved = saved_as("one.bin", server)
    assert saved["n_written"] == (folder / "one.bin").stat().st_size
    for slot in range(3):
        ask(server, "erase", slot)
    assert complete(server, TEXT) == (text, 0)
    for slot in range(3):
        ask(server, "erase", slot)
    complete(server, OTHER)
    restored = ask(server, "restore", 2, filename="one.bin")
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again, n_cached = complete(server, TEXT)
    assert again == text
    assert n_cached > 10


def test_what_is_no_slots_file_is_refused(saving):
    server, folder = saving
    text, _ = complete(server, TEXT)
    ask(server, "save", 0, filename="good.bin")
    (folder / "foreign.bin").write_bytes(b"GGUF of something else")
    (folder / "cut.bin").write_bytes((folder / "good.bin").read_bytes()[:-5])
    for name in ("foreign.bin", "cut.bin", "none.bin", "../good.bin", ""):
        ask(server, "restore", 0, 400, filename=name)
    ask(server, "move", 0, 400, filename="x.bin")
    assert complete(server, TEXT)[0] == text


def test_slots_without_a_folder_have_no_files(server):
    answer = ask(server, "save", 0, 501, filename="x.bin")
    assert "--slot-save-path" in answer["error"]["message"]
    assert [each["id"] for each in server.get("/slots")] == [0]


def test_files_that_never_end_and_places_that_no_text_has(saving):
    server, folder = saving
    text, _ = complete(server, TEXT)
    slot, saved = saved_as("whole.bin", server)
    data = (folder / "whole.bin").read_bytes()
    n_tokens = int(saved["n_saved"])
    begin = 12 + 4 * n_tokens  # of the cells, behind the tokens
    for token in (n_tokens - 1, n_tokens - 2):
        at = data.index(struct.pack("<i", token), begin)
        for position in (2**31 - 1, -1, -(2**31), n_tokens + 5):
            (folder / "odd.bin").write_bytes(data[:at] + struct.pack("<i", position) + data[at + 4 :])
            ask(server, "restore", slot, 400, filename="odd.bin")
            complete(server, OTHER)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/full")
    for name in ("pipe", "link"):
        ask(server, "restore", slot, 400, filename=name)
        assert server.ask("POST", f"/slots/{slot}?action=save", {"filename": name})[0] >= 400
    assert (folder / "pipe").is_fifo()
    assert complete(server, TEXT)[0] == text
