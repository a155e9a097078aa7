"""A file that cannot be run gives one line that names the file and the fault, and exit code 2."""

from __future__ import annotations

import gguf
import numpy as np
import pytest


def refused(spac_run, path, *words):
    outcome = spac_run("-m", path, "-p", "x")
    assert outcome.code == 2
    assert outcome.out == ""
    assert path.name in outcome.error
    assert any(word in outcome.error for word in words), outcome.error


def test_a_missing_file(spac_run, tmp_path):
    refused(spac_run, tmp_path / "nowhere.gguf", "no such file", "not found", "does not exist")


def test_a_folder(spac_run, tmp_path):
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    refused(spac_run, folder, "folder", "directory")


def test_an_empty_file(spac_run, tmp_path):
    path = tmp_path / "empty.gguf"
    path.touch()
    refused(spac_run, path, "empty")


@pytest.mark.parametrize("content", [b"not a model at all\n" * 100, b"GG", b"FUGG" + bytes(400)])
def test_a_file_that_is_not_gguf(spac_run, tmp_path, content):
    path = tmp_path / "text.gguf"
    path.write_bytes(content)
    refused(spac_run, path, "GGUF", "magic", "truncated")


@pytest.mark.parametrize("keep", [0.001, 0.3, 0.999])
def test_a_truncated_file(spac_run, tmp_path, target, keep):
    path = tmp_path / "cut.gguf"
    data = target.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    refused(spac_run, path, "truncated", "ends", "incomplete", "short", "past")


def test_a_lora_as_target(spac_run, tmp_path):
    path = tmp_path / "lora.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 1.0)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((4, 64), np.float32))
    writer.add_tensor("blk.0.attn_q.weight.lora_b", np.zeros((64, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(spac_run, path, "LoRA", "adapter")


def test_a_router_of_a_type_that_the_library_aborts_on(spac_run, tmp_path, tiny_model):
    path = tiny_model("qwen3moe", types={"ffn_gate_inp": "F64"})
    refused(spac_run, path, "F64", "ffn_gate_inp")


def test_an_architecture_that_the_library_does_not_know(spac_run, tmp_path, target):
    path = tmp_path / "new.gguf"
    path.write_bytes(target.read_bytes().replace(b"qwen3moe", b"qwen9moe"))
    refused(spac_run, path, "qwen9moe")


def test_a_context_that_does_not_fit(spac_run, target):
    outcome = spac_run(
        "-m",
        target,
        "-p",
        "x",
        "-c",
        16_000_000,
        "--device",
        "simulated",
        env={"SPAC_SIMULATED_DEVICE": "memory_mb=64"},
    )
    assert outcome.code == 2
    assert "16000000 tokens" in outcome.error


def test_a_file_that_may_not_be_read(spac_run, tmp_path, target):
    path = tmp_path / "secret.gguf"
    path.write_bytes(target.read_bytes())
    path.chmod(0)
    try:
        path.open("rb").close()
    except PermissionError:
        refused(spac_run, path, "ermission")
    else:
        pytest.skip("this user may read every file")


def test_a_draft_that_is_no_model(spac_run, tmp_path, target):
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"no")
    outcome = spac_run("-m", target, "-md", path, "-p", "x")
    assert outcome.code == 2
    assert path.name in outcome.error


def test_a_draft_whose_vocabulary_does_not_fit(spac_run, target, tiny_model):
    draft = tiny_model("qwen3", n_vocab=900)
    outcome = spac_run("-m", target, "-md", draft, "-p", "x")
    assert outcome.code == 2
    assert target.name in outcome.error
    assert draft.name in outcome.error
    assert "vocabular" in outcome.error


def test_a_grammar_that_cannot_be_read(spac_run, target):
    outcome = spac_run("-m", target, "-p", "x", "--grammar", "root ::= (((")
    assert outcome.code == 2
    assert outcome.err.endswith("the grammar cannot be used: expecting ')' (line 1, column 13)\n")
