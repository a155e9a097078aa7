"""Outputs destroy no input, no model and no other output, and are written whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from spac.errors import InputError
from spac.machine.files import check_outputs, check_writable, replacing, write_atomically


@pytest.fixture
def models(tmp_path):
    """Return a folder with a model of two parts, and links to the second one."""
    for part in (1, 2):
        (tmp_path / f"m-{part:05}-of-00002.gguf").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "soft").symlink_to("m-00002-of-00002.gguf")
    (tmp_path / "hard").hardlink_to(tmp_path / "m-00002-of-00002.gguf")
    return tmp_path


@pytest.mark.parametrize("name", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "soft", "hard"])
def test_no_output_replaces_a_model(models, name):
    with pytest.raises(InputError, match=f"^--timeline: .*{name} is a model: name another file$"):
        check_outputs({"--state": None, "--timeline": models / name})
    assert (models / name).read_bytes() == b"GGUF" + bytes(60)


@pytest.mark.parametrize("name", ["text", "./text", "soft", "hard"])
def test_no_output_replaces_an_input(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("def f(")
    (tmp_path / "soft").symlink_to("text")
    (tmp_path / "hard").hardlink_to("text")
    with pytest.raises(InputError, match=r"^--record: .* is the prompt: name another file$"):
        check_outputs({"--record": name}, [("the prompt", "text")])


@pytest.mark.parametrize("other", ["a", "link"])
def test_no_output_replaces_another_one(tmp_path, other):
    (tmp_path / "link").symlink_to("a")  # there is no file yet
    with pytest.raises(InputError, match=r"^--record: .* is the file of --state: name another file$"):
        check_outputs({"--state": tmp_path / "a", "--record": tmp_path / other})
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_what_is_no_regular_file_may_be_named_again(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    check_outputs({"--a": "/dev/null", "--b": "/dev/null", "--c": tmp_path / "pipe"}, [("x", "/dev/null")])


@pytest.mark.parametrize(
    ("name", "fault"), [("folder", "Is a directory"), ("no/a", "No such"), ("\0", "null")]
)
def test_places_that_hold_no_file(tmp_path, name, fault):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=f"cannot be written: .*{fault}"):
        check_outputs({"--state": tmp_path / name})


def test_a_folder_that_allows_no_new_files(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="its folder allows no new files"):
        check_writable(tmp_path / "a")


def test_a_failed_write_leaves_the_old_content(tmp_path):
    (tmp_path / "a").write_text("old")

    def write():
        with replacing(tmp_path / "a") as file:
            file.write(b"new")
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="a: cannot be written: No space left on device"):
        write()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_links_and_permissions_stay(tmp_path):
    file, link, new = (tmp_path / name for name in ("file", "link", "new"))
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to("file")
    write_atomically(link, b"data", 0o600)
    write_atomically(new, b"data", 0o600)
    assert link.is_symlink()
    assert file.read_bytes() == b"data"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, new)] == [0o640, 0o600]
