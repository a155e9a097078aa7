"""One store keeps what is measured, by machine, models and build. No fault of it stops a run."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import env
from spac.costs import store
from spac.errors import InputError

KEY = store.Key("costs", "a processor", "CUDA0", 4, "1-aa", "", "0.1.0")
VALUE, ARRAYS = {"x": [1.5, "a"]}, {"counts": np.arange(4).reshape(2, 2)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the store, which belongs to the test alone."""
    monkeypatch.setenv(env.CACHE_HOME.name, str(tmp_path))
    return tmp_path / "spac" / "measured"


def found(key: store.Key) -> Any:
    """Return an entry's value, of which no note is made."""
    notes: list[str] = []
    entry = store.get(key, notes)
    assert not notes
    return entry.value if entry is not None else None


def archive(about: str | None = None, **arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **({} if about is None else {"about": np.array(about)}), **arrays)
    return file.getvalue()


def a_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as other:
        other.writestr("about", "hello")
    return file.getvalue()


def test_what_was_put_is_there_for_the_same_key_only() -> None:
    assert found(KEY) is None
    store.put(KEY, VALUE, ARRAYS)
    entry = store.get(KEY, [])
    assert entry is not None
    assert entry.value == VALUE
    np.testing.assert_array_equal(entry.arrays["counts"], ARRAYS["counts"], strict=True)
    for field in dataclasses.fields(KEY):
        other = 5 if field.name == "threads" else "another"
        assert found(dataclasses.replace(KEY, **{field.name: other})) is None


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff" * 100, b"GGUF" + bytes(100), a_zip(), archive(), archive("{"), archive("[1]"),
     archive("3"), archive("[" * 200_000),
     archive('{"spac": 99, "key": null}'), archive(f'{{"spac": {store.VERSION}}}'),
     archive(f'{{"spac": {store.VERSION}, "key": {{}}, "value": {{}}}}'),
     archive(x=np.array([{}], dtype=object))],
)  # fmt: skip
def test_a_file_that_cannot_be_used_costs_a_line_and_is_replaced(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    KEY.path.write_bytes(content)
    notes: list[str] = []
    assert store.get(KEY, notes) is None
    (note,) = notes
    assert str(KEY.path) in note
    assert "\n" not in note
    store.put(KEY, VALUE)
    assert found(KEY) == VALUE


def test_a_pipe_in_the_store_holds_nobody_up(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(KEY.path)
    notes: list[str] = []
    assert store.get(KEY, notes) is None
    assert len(notes) == 1
    with pytest.raises(InputError, match="cannot be written"):
        store.put(KEY, VALUE)


def test_a_folder_that_cannot_be_written_is_one_line(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    for act in (store.check, lambda: store.put(KEY, VALUE)):
        with pytest.raises(InputError) as refused:
            act()
        assert "\n" not in str(refused.value)
    assert found(KEY) is None


WRITER = """
import sys
from spac.costs import store
for i in range(20):
    for kind in (sys.argv[1], "shared"):
        key = store.Key(kind, "a processor", more=str(i))
        store.put(key, {"i": i})
        assert store.get(key, []).value == {"i": i}
"""


def test_processes_do_not_lose_each_others_entries(folder: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in ("one", "two")]
    assert [each.wait(60) for each in writers] == [0, 0]
    for kind in ("one", "two", "shared"):
        assert [found(store.Key(kind, "a processor", more=str(i))) for i in range(20)] == [
            {"i": i} for i in range(20)
        ]
    assert len(list(folder.iterdir())) == 60


def test_the_oldest_go_first(folder: Path) -> None:
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "middle", "old")):
        (folder / name).write_bytes(bytes(40))
        os.utime(folder / name, (1000 - age, 1000 - age))
    for most, left in ((120, {"new", "middle", "old"}), (100, {"new", "middle"}), (40, {"new"})):
        store.trim(most)
        assert {path.name for path in folder.iterdir()} == left


def test_the_newest_of_a_target_and_a_device(folder: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    target.write_text("a target")
    other.write_text("another")
    for i, (device, file) in enumerate((("CUDA0, 1", target), ("CUDA0, 2", target), ("CUDA0, 1", other))):
        key = store.Key.of("costs", device=device, target=file, threads=i)
        store.put(key, {"i": i})
        os.utime(key.path, (i, i))
    (folder / "costs-broken.npz").write_text("a note")
    entry = store.newest("costs", target, "CUDA0")
    assert entry is not None
    assert entry.value == {"i": 1}
    assert store.newest("costs", target, "CUDA1") is store.newest("kernels", target, "CUDA0") is None


def test_a_fingerprint_sees_both_ends_and_the_size(tmp_path: Path) -> None:
    path, seen = tmp_path / "model", set()
    for content in (
        b"a" * 3_000_000,
        b"b" + b"a" * 2_999_999,
        b"a" * 2_999_999 + b"b",
        b"a" * 3_000_001,
        b"",
    ):
        path.write_bytes(content)
        seen.add(store.fingerprint(path))
    assert len(seen) == 5
    with pytest.raises(InputError, match="cannot be read"):
        store.fingerprint(tmp_path / "nothing")
