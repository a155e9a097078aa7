"""One line tells what is wrong with a file that is no usable model, and what to do."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from spac.errors import InputError
from spac.model.gguf.check import check_model, check_projector
from tests.conftest import TinyModel
from tests.model.gguf.files import entry, offset_of, patched, raw, rewritten, split, tensor_entry, text
from tools.models import FAMILIES, Shape, write_projector


@pytest.fixture(scope="module")
def good(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe", n_layer=2)


def fault(path: Path, role: str = "target") -> str:
    """Return the error line of checking the file. The line names the file and has a remedy."""
    with pytest.raises(InputError) as caught:
        check_model(path, role)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert re.fullmatch(r"[^\n]+; [^\n]+", line), line
    return line.removeprefix(f"{path}: ")


def test_a_good_file_describes_itself(good: Path) -> None:
    info = check_model(good)
    assert (info.architecture, info.n_layer, info.n_expert, info.n_expert_used) == ("qwen3moe", 2, 5, 2)
    assert (info.n_ctx_train, info.n_embd, info.n_vocab) == (4096, 64, 272)
    assert (info.n_expert_layers, info.expert_bytes) == (2, 2 * 5 * 3 * 64 * 96 * 4)
    assert info.file_size == good.stat().st_size


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_passes(family: str, tiny_model: TinyModel) -> None:
    info = check_model(tiny_model(family))
    assert info.is_moe == (family not in ("llama", "qwen3", "graniteswitch"))


# Paths


def test_no_such_file(tmp_path: Path, good: Path) -> None:
    assert fault(tmp_path / "no.gguf") == "there is no such file; check the path"
    assert "that folder has" in fault(good.with_name("no.gguf"))


def test_no_regular_file(tmp_path: Path, good: Path) -> None:
    assert fault(tmp_path) == "this is a folder; name a file in it: it has no .gguf file"
    assert "name a file in it" in fault(good.parent)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in fault(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "\udc80", "/dev/null", "", "a\nb"])
def test_paths_that_no_file_has(path: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]+: [^\n]+; [^\n]+$"):
        check_model(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, good: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(good.read_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "cannot be read" in fault(path)


CONTENTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "one byte": (b"G", "not a GGUF file"),
    "text": (b"hello " * 100, "not a GGUF file"),
    "magic only": (b"GGUF", "ends within the version"),
    "big-endian magic": (b"FUGG" + bytes(100), "big-endian"),
    "web page": (b"<!DOCTYPE html><html>", "a web page"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    "zip": (b"PK\x03\x04" + bytes(60), "PyTorch checkpoint"),
    "safetensors": (struct.pack("<Q", 40) + b'{"__metadata__": {}}', "safetensors"),
    "GGML": (b"tjgg" + bytes(60), "before GGUF"),
    "version 1": (raw(version=1), "GGUF version 1 is not"),
    "version 4": (raw(version=4), "GGUF version 4 is not"),
    "version swapped": (raw(version=3 << 24), "big-endian"),
    "nothing in it": (raw(), "general.architecture is missing"),
    "endless metadata": (raw(n_entries=1 << 60), "metadata entries, more than"),
    "endless tensors": (raw(n_tensors=1 << 60), "tensors, more than"),
    "metadata missing": (raw(n_entries=3), "ends within metadata key 0"),
    "endless key": (raw(struct.pack("<Q", 1 << 60)), "claims"),
    "empty key": (raw(entry("", 4, bytes(4))), "is empty"),
    "key twice": (raw(*[entry("a", 4, bytes(4))] * 2), "a second 'a'"),
    "unknown value type": (raw(entry("a", 77, bytes(64))), "unknown type 77"),
    "endless string": (raw(entry("a", 8, struct.pack("<Q", 1 << 62))), "claims"),
    "endless array": (raw(entry("a", 9, struct.pack("<IQ", 4, 1 << 62))), "past the end"),
    "endless strings": (raw(entry("a", 9, struct.pack("<IQ", 8, 1 << 62))), "strings, more than"),
    "many strings": (raw(entry("a", 9, struct.pack("<IQ", 8, 1 << 20))), "past the end"),
    "string that runs out": (raw(entry("a", 9, struct.pack("<IQQ", 8, 1, 1 << 63))), "past the end"),
    "token twice": (raw(entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") * 2)),
                    "are the same"),
    "array of arrays": (raw(entry("a", 9, struct.pack("<IQ", 9, 1)) + bytes(99)), "array of arrays"),
    "alignment 3": (raw(entry("general.alignment", 4, struct.pack("<I", 3))), "power of two"),
    "alignment by name": (raw(entry("general.alignment", 8, text("32"))), "power of two"),
    **{
        said: (raw(*entries, n_tensors=len(entries), n_entries=0), said)
        for said, *entries in (
            ("5 dimensions", tensor_entry("t", (1,) * 5, 0, 0)),
            ("0 dimensions", tensor_entry("t", (), 0, 0)),
            ("a dimension of 0", tensor_entry("t", (4, 0), 0, 0)),
            ("impossibly large", tensor_entry("t", (1 << 40,) * 2, 0, 0)),
            ("unknown or removed type 4", tensor_entry("t", (32,), 4, 0)),
            ("not a multiple of Q4_0's 32", tensor_entry("t", (33,), 2, 0)),
            ("more than 63 bytes", tensor_entry("t" * 64, (32,), 0, 0)),
            ("two tensors 't'", *[tensor_entry("t", (8,), 0, 0)] * 2),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_that_are_no_model(name: str, tmp_path: Path) -> None:
    content, expected = CONTENTS[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert expected in fault(path)


# Incomplete models


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
def test_a_cut_off_file(share: float, good: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(good.read_bytes()[: int(good.stat().st_size * share)])
    assert re.search("ends within|cut off|runs past|past the end", fault(path))
    path.write_bytes(good.read_bytes().rstrip(b"\0")[:-1])  # padding at the end may be missing
    assert "are missing; download it again" in fault(path)


def test_parts(good: Path, tmp_path: Path) -> None:
    parts = split(good, tmp_path, "model")
    info = check_model(parts[0])
    assert info.file_size == sum(part.stat().st_size for part in parts)
    assert info.expert_bytes == check_model(good).expert_bytes
    assert fault(parts[1]).endswith(f"part 2 of 3; give the first one, {parts[0].name}")
    (tmp_path / "renamed.gguf").write_bytes(parts[0].read_bytes())
    assert "does not end in -00001-of-00003.gguf" in fault(tmp_path / "renamed.gguf")
    content = parts[2].read_bytes()
    parts[2].write_bytes(content[: len(content) // 2])
    assert re.search("ends within|cut off|runs past", fault(parts[0]))
    parts[2].write_bytes(parts[1].read_bytes())
    assert f"its part {parts[2].name}: it is not part 3 of 3" in fault(parts[0])
    parts[2].unlink()
    assert f"1 of its 3 parts are missing, {parts[2].name} first" in fault(parts[0])


# Files other than the intended model


def test_an_adapter(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "lora.gguf", "qwen3moe")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "a LoRA adapter, not a model; give the model it belongs to as the draft" in fault(
        tmp_path / "lora.gguf", "draft"
    )


def test_other_kinds_of_file(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    assert "multimodal projector" in fault(rewritten(good, path, {"general.architecture": "clip"}))
    assert "multimodal projector" in fault(rewritten(good, path, {"general.type": "mmproj"}))
    assert "type 'imatrix'" in fault(rewritten(good, path, {"general.type": "imatrix"}))
    assert "has no tensors" in fault(rewritten(good, path, drop="."))
    assert "general.architecture is missing or not a name" in fault(
        rewritten(good, path, {"general.architecture": "a b"})
    )


# Models that would make the library abort

METADATA: dict[str, tuple[str, dict[str, object], str]] = {
    **{
        name: ("qwen3moe", changes, said)
        for name, changes, said in (
            ("no layers", {".block_count": 0}, "block_count is 0"),
            ("too many layers", {".block_count": 513}, "block_count is 513"),
            ("negative layers", {".block_count": -1}, "block_count is -1"),
            ("layers as text", {".block_count": "two"}, "not a whole number"),
            ("no context", {".context_length": 0}, "context_length is 0"),
            ("too many experts", {".expert_count": 1025}, "expert_count is 1025"),
            ("more used than there are", {".expert_used_count": 6}, "expert_used_count is 6"),
            ("none used", {".expert_used_count": 0}, "expert_used_count is 0"),
            ("experts of another model", {".expert_count": 4}, "has 5 experts, and expert_count is 4"),
            ("experts that nobody declared", {".expert_count": None, ".expert_used_count": None},
             "has 5 experts, and expert_count is 0"),
            ("as many groups as experts", {".expert_group_count": 5}, "expert_group_count is 5"),
            ("groups that do not divide", {".expert_group_count": 2, ".expert_group_used_count": 1},
             "do not fit 2 groups"),
            ("only MTP layers", {".nextn_predict_layers": 3}, "nextn_predict_layers is 3"),
            ("negative epsilon", {".attention.layer_norm_rms_epsilon": -1.0}, "not a small positive number"),
            ("no epsilon", {".attention.layer_norm_rms_epsilon": float("nan")}, "a small positive number"),
            ("unknown scaling", {".rope.scaling.type": "cubic"}, "rope.scaling.type is 'cubic'"),
            ("unknown gating", {".expert_gating_func": 9}, "expert_gating_func is 9"),
            ("rope wider than a head", {".rope.dimension_count": 64}, "rope.dimension_count is 64"),
            ("odd rope", {".rope.dimension_count": 31}, "rope.dimension_count is 31"),
            ("no size", {".attention.value_length": 0}, "4 and 2 heads of 32 and 0"),
        )
    },
    "keys": ("gpt-oss", {".attention.key_length": 64}, "'blk.0.attn_q.weight' are not 4 heads of 64"),
    "values": ("gpt-oss", {".attention.value_length": None}, "attn_v.weight' does not have the 32 rows"),
    "heads": ("qwen2moe", {".attention.head_count_kv": 4}, "attn_k.weight' does not have the 128 rows"),
    "queries": ("qwen2moe", {".attention.head_count": 3}, "attn_q.weight' are not 3 heads of 32"),
    "latent rope": ("deepseek2", {".attention.key_length_mla": 16}, "leaves nothing beside"),
    "latent keys": ("deepseek2", {".attention.key_length": 64}, "1 heads of 64 do not fit kv_lora_rank 32"),
    "latent heads": ("deepseek2", {".attention.head_count_kv": 2}, "2 heads of 48 do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_the_library_asserts(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    family, changes, expected = METADATA[name]
    assert expected in fault(rewritten(tiny_model(family), tmp_path / "bad.gguf", changes))


LARGE = [2**30] * 4
POSITIONS = [[0, 0, 0, 0], [0, 8, 8, 0], [8, 0, 8, 0], LARGE, [8, 8, 8, 9], [-8, 8, 8, 0]]


@pytest.mark.parametrize("parts", [*POSITIONS, 99], ids=str)
def test_parts_of_a_head_for_positions(parts: object, tiny_model: TinyModel, tmp_path: Path) -> None:
    good = tiny_model("qwen3vlmoe")
    path = rewritten(good, tmp_path / "bad.gguf", {".rope.dimension_sections": parts})
    assert "not parts of a head's 32 numbers" in fault(path)


ENCODERS: dict[str, tuple[str, int, str]] = {
    "no heads": ("clip.vision.attention.head_count", 0, "head_count is 0"),
    "more heads than numbers": ("clip.vision.attention.head_count", 64, "head_count is 64"),
    "heads that do not divide": ("clip.vision.attention.head_count", 3, "head_count is 3"),
    "heads without parts": ("clip.vision.attention.head_count", 16, "2 numbers a head"),
    "no blocks": ("clip.vision.block_count", 0, "block_count is 0, and there are 2"),
    "fewer blocks": ("clip.vision.block_count", 1, "block_count is 1, and there are 2"),
    "merged by another number": ("clip.vision.spatial_merge_size", 4, "spatial_merge_size is 4"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_projector_whose_sizes_do_not_fit(name: str, tmp_path: Path) -> None:
    key, value, expected = ENCODERS[name]
    good = write_projector(tmp_path / "good.gguf", "qwen3vl", 64)
    assert check_projector(good, 64) == "qwen3vl_merger"
    at = good.read_bytes().index(key.encode()) + len(key) + 4
    path = patched(good, tmp_path / "bad.gguf", at, struct.pack("<I", value))
    with pytest.raises(InputError, match=expected) as refused:
        check_projector(path, 64)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [("blk.1.ffn_gate_inp", "F64"), ("blk.0.ffn_up_exps", "Q8_1"), ("token_embd", "I8"), ("output", "Q8_K")],
)
def test_weights_without_a_kernel(kind: str, tensor: str, tiny_model: TinyModel) -> None:
    path = tiny_model("qwen3moe", Shape(n_layer=2, n_embd=256, types={tensor: kind}))
    assert f"tensor '{tensor}.weight' has the type {kind}, which llama.cpp cannot compute with" in fault(path)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [("blk.1.attn_norm.weight", "F16"), ("output_norm.weight", "Q8_0"), ("blk.0.attn_q.bias", "BF16"),
     ("blk.0.ffn_up_exps.bias", "F16")],
)  # fmt: skip
def test_norms_and_biases_are_f32(kind: str, tensor: str, tiny_model: TinyModel) -> None:
    path = tiny_model("gpt-oss", Shape(n_layer=2, types={tensor: kind}))
    assert f"tensor {tensor!r} has the type {kind}, and norms and biases must be F32" in fault(path)


def test_data_at_another_place(good: Path, tmp_path: Path) -> None:
    name = "output_norm.weight"
    at = offset_of(good, name) + 8 + len(name) + 4 + 8 + 4
    for offset in (1 << 40, 0):
        assert f"{offset}, not at" in fault(
            patched(good, tmp_path / "bad.gguf", at, struct.pack("<Q", offset))
        )


def test_constants_are_those_of_the_format() -> None:
    """The parser's table has every scalar type that the gguf package has."""
    from spac.model.gguf.header import _SCALARS

    assert set(_SCALARS) == set(GGUFValueType) - {GGUFValueType.ARRAY, GGUFValueType.STRING}
    assert {"F32", "Q4_0", "MXFP4"} <= {kind.name for kind in GGMLQuantizationType}
