"""A name means the file that llama.cpp would take, a hub gives it, and every fault is one line."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spac.errors import InputError
from spac.model.hub import Access, Name, cached_models, choose, fetch, folder, labels, models_in
from tests.model.hub_server import Hub, running

FILES = [
    "README.md", "imatrix_unsloth.gguf", "m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf",
    "m-IQ4_XS.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q2_K_XL.gguf", "mmproj-F16.gguf",
    "mtp-m-Q8_0.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("a/m", "m-Q4_K_M.gguf"),
        ("a/m:q8_0", "m-Q8_0.gguf"),
        ("a/m:BF16", "m-BF16-00001-of-00002.gguf"),
        ("a/m:UD-Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("a/m:q2_k_xl", "m-UD-Q2_K_XL.gguf"),
    ],
)
def test_a_quantization(name, first):
    assert choose(Name.parse(name), FILES).files[0] == first


@pytest.mark.parametrize(("one", "two", "chosen"), [("Q2_K", "Q8_0", "Q8_0"), ("F16", "Q2_K", "F16")])
def test_the_default_is_llama_cpp_s(one, two, chosen):
    assert choose(Name("a/m"), [f"x-{one}.gguf", f"x-{two}.gguf"]).files[0] == f"x-{chosen}.gguf"


def test_all_parts_and_no_projectors():
    models = models_in(FILES)
    assert labels(models) == ["BF16", "IQ4_XS", "Q4_K_M", "Q8_0", "Q2_K_XL"]
    assert models[0].files == ("m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf")
    assert choose(Name("a/m"), FILES, "m-BF16-00002-of-00002.gguf") == models[0]


@pytest.mark.parametrize(
    ("name", "file", "files", "said"),
    [
        ("a/m:Q9", "", FILES, "a/m has no quantization 'Q9': it has BF16, IQ4_XS, Q4_K_M, Q8_0, Q2_K_XL"),
        ("a/m", "x.gguf", FILES[:6], "no model file 'x.gguf': it has m-BF16-00001-of-00002.gguf, m-IQ4_XS"),
        ("a/m", "", ["README.md", "mmproj-F16.gguf"], "no GGUF file of a model"),
        ("a/m:Q4_0", "", ["x-Q4_0.gguf", "y-Q4_0.gguf"], "several models in Q4_0: name one with --hf-file"),
        ("a/m", "", FILES[2:3], "1 of 2 parts of m-BF16"),
        ("a/m:Z", "", [f"x-Q{n}.gguf" for n in range(14)], "Q10, Q11 and 2 more"),
    ],
)  # fmt: skip
def test_one_line_says_what_there_is(name, file, files, said):
    with pytest.raises(InputError) as refused:
        choose(Name.parse(name), files, file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/b:", "../b", "a/b:c:d", "https://a/b", "a b/c"])
def test_other_forms_are_refused(text):
    with pytest.raises(InputError, match="is not OWNER/REPO"):
        Name.parse(text)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Return the hub that huggingface_hub asks in this test. The test is skipped without that package."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with running() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            found.address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr("spac.model.hub.PAUSE_S", 0.01)
        yield found


NAME = Name("a/m")
DATA = bytes(range(256)) * 4000
QUIET = Access(quiet=True)


def refusal(name=NAME, file="", access=QUIET):
    with pytest.raises(InputError) as refused:
        fetch(name, file, access)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_download_and_the_cache(hub):
    hub.repos["a/m"] = {"m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": b"8", "mmproj.gguf": b"p"}
    path = fetch(NAME, "", QUIET)
    assert (path.name, path.read_bytes()) == ("m-Q4_K_M.gguf", DATA)
    assert fetch(NAME, "", QUIET) == path
    assert hub.ranges == [""]
    assert fetch(NAME, "m-Q8_0.gguf", QUIET).read_bytes() == b"8"
    assert [model.name for model in cached_models()] == ["a/m:Q4_K_M", "a/m:Q8_0"]


def test_redirects_without_end(hub):
    hub.repos["a/m"], hub.loops = {"m-Q8_0.gguf": b"8"}, True
    assert "the hub leads from 127.0.0.1 to itself again and again" in refusal()


def test_all_parts_of_a_split_model(hub):
    hub.repos["a/m"] = {f"q/m-Q8_0-0000{i}-of-00002.gguf": bytes([i]) for i in (1, 2)}
    path = fetch(Name("a/m", "Q8_0"), "", QUIET)
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert sorted(part.read_bytes() for part in path.parent.iterdir()) == [b"\1", b"\2"]
    assert [model.name for model in cached_models()] == ["a/m:Q8_0"]


def test_a_cut_connection(hub):
    hub.repos["a/m"], hub.cut_after = {"m.gguf": DATA}, [700_000, 0, 100_000]
    assert fetch(NAME, "", QUIET).read_bytes() == DATA
    assert hub.ranges == ["", "bytes=700000-", "bytes=700000-", "bytes=800000-"]
    hub.repos["a/m"], hub.cut_after = {"m.gguf": DATA[1:]}, [0] * 9
    assert "the hub cannot be reached (HF_ENDPOINT, the network): run it again" in refusal()


def test_a_later_run_goes_on(hub):
    hub.repos["a/m"] = {"m.gguf": DATA}
    begun = folder("a/m") / "blobs" / f"{hashlib.sha256(DATA).hexdigest()}.incomplete"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(DATA[:1000])
    assert fetch(NAME, "", QUIET).read_bytes() == DATA
    assert hub.ranges == ["bytes=1000-"]


def test_a_new_version(hub):
    hub.repos["a/m"] = {"m.gguf": DATA}
    old = fetch(NAME, "", QUIET)
    hub.repos["a/m"] = {"m.gguf": DATA[::-1]}
    assert fetch(NAME, "", QUIET).read_bytes() == DATA[::-1]
    assert old.read_bytes() == DATA


def test_without_a_connection_the_cache_serves(hub, monkeypatch):
    hub.repos["a/m"] = {"m-Q8_0.gguf": DATA, "m-Q2_K.gguf": b""}
    offline = Access(quiet=True, offline=True)
    assert "keeps it from being downloaded, and it is not in the cache" in refusal(access=offline)
    path = fetch(NAME, "", QUIET)
    assert fetch(NAME, "", offline) == path
    assert "in the cache, a/m has no quantization 'Q2_K': it has Q8_0" in refusal(
        Name("a/m", "Q2_K"), "", offline
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert fetch(NAME, "", QUIET) == path
    assert "HF_HUB_OFFLINE" in refusal(Name("a/other"))


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    hub.repos["a/m"] = {"m.gguf": DATA}
    path = fetch(NAME, "", QUIET)
    hub.statuses["a/m"] = hub.statuses["a/n"] = (500, "")
    assert fetch(NAME, "", QUIET) == path
    assert "the hub answers with status 500, and it is not in the cache" in refusal(Name("a/n"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert fetch(NAME, "", QUIET) == path
    assert "a/n: the hub cannot be reached" in refusal(Name("a/n"))


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "", "refuses access (401): there is no such repository, or it is private"),
        (403, "", "refuses access (403)"),
        (403, "GatedRepo", "(403): accept its conditions on its page there, and give your token as HF_TOKEN"),
        (404, "RepoNotFound", "no such repository or file (404)"),
    ],
)
def test_what_the_hub_refuses(hub, status, code, said):
    hub.statuses["a/m"] = (status, code)
    assert said in refusal()


def test_a_token(hub, monkeypatch):
    hub.repos["a/m"], hub.token = {"m.gguf": b"m"}, "hf_secret"
    assert "(401)" in refusal()
    assert fetch(NAME, "", Access("hf_secret", quiet=True)).read_bytes() == b"m"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch(NAME, "", QUIET).read_bytes() == b"m"


def test_a_file_that_changes_during_the_download(hub):
    hub.repos["a/m"], hub.said_longer = {"m.gguf": DATA}, 10
    assert refusal() == "a/m: a file is not as long as the hub said: it changed there: run it again"


def test_a_file_that_is_not_the_listed_one(hub):
    hub.repos["a/m"], hub.has_sums = {"m.gguf": DATA}, True
    assert fetch(NAME, "", QUIET).read_bytes() == DATA
    hub.repos["a/n"], hub.listed = {"n.gguf": DATA[1:]}, {"n.gguf": DATA[2:]}
    assert "n.gguf came with other content than the hub lists" in refusal(Name("a/n"))
    assert not list(folder("a/n").rglob("*.gguf"))  # it is not taken at the next run
    assert not list(folder("a/n").glob("blobs/*"))
    hub.listed = {}
    assert fetch(Name("a/n"), "", QUIET).read_bytes() == DATA[1:]


@pytest.mark.parametrize("tag", ["../../../outside", "..", "a b"])
def test_a_tag_that_leads_out_of_the_cache(hub, tag):
    hub.repos["a/m"], hub.tag = {"m.gguf": DATA}, tag.encode().decode("latin-1")
    assert "which is no file's name" in refusal()
    assert hub.ranges == []


def test_a_full_disk(hub, monkeypatch):
    hub.repos["a/m"] = {"m.gguf": DATA}
    with monkeypatch.context() as change:
        change.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        assert "1.0 MiB are to be downloaded" in refusal()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert refusal() == "a/m: the disk is full: make room, or name another folder with HF_HOME"


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub.constants", None)
    assert refusal() == "models by name need huggingface_hub: run `pip install 'spac[hf]'`"


@pytest.mark.filterwarnings("ignore:The `local_dir_use_symlinks` argument")
def test_llama_from_pretrained(hub, tiny_model):
    from spac import Llama

    hub.repos["a/m"] = {"m-F32.gguf": Path(tiny_model("qwen3moe")).read_bytes()}
    llama = Llama.from_pretrained("a/m", "*F32.gguf", n_ctx=64, verbose=False, device="cpu")
    try:
        assert llama("x", max_tokens=2)["choices"]
    finally:
        llama.close()
