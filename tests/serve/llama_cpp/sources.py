"""Unpack llama.cpp's server tests from the pinned sdist, and write the models that replace its downloads."""

from __future__ import annotations

import tarfile
from pathlib import Path

import gguf
from gguf import GGUFReader, GGUFWriter
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from tools.models import Shape, write_model
from tools.patches.source import llama_source, sdist

TESTS = "tools/server/tests"
"""The folder of the tests, which they start in."""
VOCABULARY = "models/ggml-vocab-llama-spm.gguf"
WANTED = (f"{TESTS}/", "models/templates/", VOCABULARY)
MODEL = "model.gguf"
"""The file beside the tests that replaces every model."""
FILL_IN = {"prefix": 31997, "suffix": 31998, "middle": 31999}
"""Tokens that stand for the parts of a text that is filled in. The vocabulary has none for them."""


def prepare(folder: Path) -> Path:
    """Unpack the tests and write the model into `folder`. Return the tests' folder."""
    archive = sdist()
    assert archive is not None
    with tarfile.open(archive) as tar:
        for member in tar:
            _, inside, name = member.name.partition(f"/{llama_source.INSIDE_SDIST}")
            if inside and member.isfile() and name.startswith(WANTED):
                content = tar.extractfile(member)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content.read())
    (folder / TESTS / "tmp").mkdir(exist_ok=True)
    write_stories(folder / VOCABULARY, folder / MODEL)
    return folder / TESTS


def write_stories(vocabulary: Path, path: Path) -> None:
    """Write a model of random weights and experts with a SentencePiece vocabulary, as the tests' own has."""
    random = path.with_suffix(".random")
    kept = GGUFReader(vocabulary).fields
    n_vocab = len(kept["tokenizer.ggml.tokens"].contents())
    write_model(random, "qwen3moe", Shape(n_layer=2, n_expert=8, n_vocab=n_vocab, n_ctx=8192))
    reader = GGUFReader(random)
    fields = {
        name: MetadataDetails(field.types[0], field.contents(), sub_type=field.types[-1])
        for name, field in kept.items()
        if name.startswith("tokenizer.")
    }
    for name, token in FILL_IN.items():
        fields[f"tokenizer.ggml.{name}_token_id"] = MetadataDetails(gguf.GGUFValueType.UINT32, token)
    gone = [name for name in reader.fields if name.startswith("tokenizer.") and name not in fields]
    writer = GGUFWriter(path, "qwen3moe")
    for name, value in list(fields.items()):  # lists that the random model lacks need their type of elements
        if value.type == gguf.GGUFValueType.ARRAY and name not in reader.fields:
            writer.add_key_value(name, value.value, value.type, sub_type=value.sub_type)
            del fields[name]
    copy_with_new_metadata(reader, writer, fields, gone)
    random.unlink()
