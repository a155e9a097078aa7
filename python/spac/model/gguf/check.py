"""Checks a model file before llama.cpp sees it, because llama.cpp ends the process on some faults.

`check_model` looks for two kinds of faults. The library's loader asserts some of them instead of reporting
them; these were found by reading it and by loading mutated files. Others are frequent errors of users: a
folder, an incomplete download, an adapter, one part of many. The library itself reports all other faults,
such as an architecture that it does not know.
"""

from __future__ import annotations

import math
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Type

from spac.errors import InputError
from spac.model.gguf.header import DAMAGED, Array, Header, HeaderError, TensorInfo, read_header
from spac.model.gguf.info import EXPERTS, ModelInfo, describe, number

__all__ = ["ModelInfo", "check_model", "check_projector"]

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS of the pinned llama.cpp, which asserts it."""
MAX_EXPERTS = 1024
"""LLAMA_MAX_EXPERTS of the pinned llama.cpp, which asserts it."""
NO_KERNEL = frozenset((Type.F64, Type.I8, Type.I16, Type.I32, Type.I64, Type.Q8_1, Type.Q8_K))
"""Types of weights without a kernel for products. llama.cpp calls a null pointer for them."""
# The CPU adds and multiplies these element by element in F32 only. llama.cpp's converter writes F32.
_ELEMENTWISE = re.compile(r"(_norm\.weight|\.bias|attn_sinks\.weight|\.scale|rope_freqs\.weight)$")
_LOOKUP_TABLES = re.compile(r"tid2eid")  # maps tokens to experts: the only weights of an integer type
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")  # llama.cpp asserts one of these names
_MAX_GATING = 4  # llama.cpp asserts a number up to this one
_ENCODER = ("v.blk.", "v.patch", "v.position", "v.pre_ln", "v.post_ln", "a.")  # a projector's other tensors
_ENCODER_HEADS = re.compile(r"v\.blk\.(\d+)\.(?:attn_q|attn_qkv)\.weight$")
_SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def check_model(
    path: str | PathLike[str], role: str = "target", overrides: Mapping[str, Any] | None = None
) -> ModelInfo:
    """Check a GGUF file, with the other parts of a split one, by the headers, and return the model's facts.

    A file of 17 GB takes some tenths of a second. `role` names the file's use ("target", "draft") in the
    remedy. `overrides` are metadata that replace the file's (`--override-kv`). Raises InputError for every
    fault, and no other error, with one line "<file>: <fault>; <what to do>".
    """
    path = Path(path)
    with _faults_of(path):
        _check_place(path)
        header = read_header(path)
        _check_purpose(header, role)
        headers = [header, *_other_parts(path, header)]
        for part in headers:
            _check_tensors(part)
        info = _check_whole(path, headers)
    return _check_overridden(path, headers, overrides) if overrides else info


def check_projector(path: str | PathLike[str], n_embd: int | None = None) -> str:
    """Check the GGUF file of a projector by its header, and return the projector's type.

    `n_embd` is the size of the model's embeddings. Raises InputError as `check_model` does.
    """
    path = Path(path)
    with _faults_of(path):
        _check_place(path)
        header = read_header(path)
        if header.metadata.get("general.architecture") != "clip":
            raise HeaderError("this is no projector", "give the model's mmproj file to --mmproj")
        if not header.metadata.get("clip.has_vision_encoder"):
            raise HeaderError("this projector reads no images", "give one that does to --mmproj")
        _check_values(header, "clip")
        _check_encoder(header)
        _check_names([header], list(header.tensors))
        _check_data(header)
        # llama.cpp finds this out too, but does not free the projector then.
        ends = [tensor.shape for tensor in header.tensors if not tensor.name.startswith(_ENCODER)]
        if n_embd is not None and ends and not any(n_embd in shape for shape in ends):
            raise HeaderError(
                f"this projector is another model's: the model's embeddings have {n_embd} numbers",
                "give the mmproj file of this model to --mmproj",
            )
    meta = header.metadata
    return str(meta.get("clip.projector_type") or meta.get("clip.vision.projector_type") or "of unknown type")


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Make InputError of faults in the header of a file, and of errors that reading it raises."""
    try:
        yield
    except HeaderError as fault:
        raise InputError(f"{_printable(path)}: {fault}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{_printable(path)}: cannot be read ({reason}); check the path and its permissions"
        ) from None


def _check_whole(path: Path, headers: list[Header]) -> ModelInfo:
    header, tensors = headers[0], [tensor for part in headers for tensor in part.tensors]
    _check_names(headers, tensors)
    info = describe(path, header, tensors, sum(part.file_size for part in headers))
    _check_sizes(header, info)
    _check_values(header, info.architecture)
    _check_attention(header, info, tensors)
    _check_positions(header, info)
    _check_experts(info, tensors)
    return info


def _check_overridden(path: Path, headers: list[Header], overrides: Mapping[str, Any]) -> ModelInfo:
    headers[0].metadata.update(overrides)
    try:
        return _check_whole(path, headers)
    except HeaderError as fault:
        raise InputError(f"{_printable(path)}: with these override_kv, {fault.fault}") from None


def _printable(path: Path) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(path))


def _check_place(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.gguf"))[:3] if path.parent.is_dir() else []
        remedy = f"that folder has {', '.join(near)}" if near else "check the path"
        raise HeaderError("there is no such file", remedy) from None
    if stat.S_ISDIR(mode):
        inside = sorted(p.name for p in path.glob("*.gguf"))[:3]
        raise HeaderError(
            "this is a folder", f"name a file in it: {', '.join(inside) or 'it has no .gguf file'}"
        )
    if not stat.S_ISREG(mode):
        raise HeaderError("this is not a regular file", "name a .gguf file")


def _check_purpose(header: Header, role: str) -> None:
    kind = header.metadata.get("general.type", "model")
    if kind == "adapter":
        raise HeaderError(
            "this is a LoRA adapter, not a model", f"give the model it belongs to as the {role}"
        )
    if kind == "mmproj" or header.metadata.get("general.architecture") == "clip":
        raise HeaderError(
            "this is a multimodal projector, not a model", f"give the language model as the {role}"
        )
    if kind not in ("model", ""):
        raise HeaderError(f"this is a file of type {kind!r}, not a model", f"give a model as the {role}")
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not re.fullmatch(r"[\w.-]{1,64}", architecture):
        raise HeaderError("general.architecture is missing or not a name", DAMAGED)


# Parts


def part_paths(path: Path, header: Header) -> list[Path]:
    """Return the files of a model in order: `path` alone, or all parts of a split model, `path` first.

    Raises HeaderError if `path` is not the first part, or its name does not have the form of a part's name.
    """
    n_parts = number(header, "split.count", 1)
    if n_parts <= 1:
        return [path]
    name = _SPLIT_NAME.search(path.name)
    if name is None or int(name[2]) != n_parts:
        raise HeaderError(
            f"this is one of {n_parts} parts, and its name does not end in -00001-of-{n_parts:05}.gguf",
            "give the parts their names back",
        )
    parts = [
        path.with_name(f"{path.name[: name.start()]}-{i:05}-of-{n_parts:05}.gguf")
        for i in range(1, n_parts + 1)
    ]
    if number(header, "split.no", 0) != 0 or int(name[1]) != 1:
        raise HeaderError(f"this is part {int(name[1])} of {n_parts}", f"give the first one, {parts[0].name}")
    return parts


def _other_parts(path: Path, header: Header) -> Iterator[Header]:
    parts = part_paths(path, header)
    n_parts = len(parts)
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise HeaderError(
            f"{len(missing)} of its {n_parts} parts are missing, {missing[0]} first", "download them too"
        )
    for i, part in enumerate(parts[1:], 1):
        try:
            other = read_header(part)
            if number(other, "split.no", -1) != i:
                raise HeaderError(f"it is not part {i + 1} of {n_parts}")
        except HeaderError as fault:
            raise HeaderError(f"its part {part.name}: {fault.fault}", fault.remedy) from None
        yield other


# Tensors


def _check_tensors(header: Header) -> None:
    for tensor in header.tensors:
        _check_type(tensor)
    _check_data(header)


def _check_data(header: Header) -> None:
    expected = 0
    for tensor in header.tensors:
        if tensor.offset != expected:
            raise HeaderError(
                f"the data of tensor {tensor.name!r} begins at {tensor.offset}, not at {expected}"
            )
        expected += -(-tensor.n_bytes // header.alignment) * header.alignment
    if header.data_end > header.file_size:
        short = header.data_end - header.file_size
        raise HeaderError(
            f"the file is cut off: {short} of {header.data_end} bytes are missing", "download it again"
        )


def _check_type(tensor: TensorInfo) -> None:
    if tensor.kind in NO_KERNEL and not (tensor.kind == Type.I32 and _LOOKUP_TABLES.search(tensor.name)):
        raise HeaderError(
            f"tensor {tensor.name!r} has the type {tensor.kind.name}, which llama.cpp cannot compute with",
            "convert the model again, to F32, F16, BF16 or a quantized type",
        )
    if tensor.kind != Type.F32 and _ELEMENTWISE.search(tensor.name):
        raise HeaderError(
            f"tensor {tensor.name!r} has the type {tensor.kind.name}, and norms and biases must be F32",
            "convert the model again",
        )


def _check_names(headers: list[Header], tensors: list[TensorInfo]) -> None:
    if not tensors:
        raise HeaderError("the file has no tensors (a vocabulary only)", "give a model with weights")
    if len(headers) > 1:
        twice = [name for name, n in Counter(t.name for t in tensors).items() if n > 1]
        if twice:
            raise HeaderError(f"tensor {twice[0]!r} is in two parts")
        n_tensors = number(headers[0], "split.tensors.count", len(tensors))
        if n_tensors != len(tensors):
            raise HeaderError(f"its parts have {len(tensors)} tensors together, not {n_tensors}")


# Metadata


def _check_sizes(header: Header, info: ModelInfo) -> None:
    for value, key, low, high in (
        (info.n_layer, "block_count", 1, MAX_LAYERS),
        (info.n_ctx_train, "context_length", 1, 2**31 - 1),
        (info.n_embd, "embedding_length", 1, 2**31 - 1),
        (info.n_expert, "expert_count", 0, MAX_EXPERTS),
        (info.n_vocab, "the vocabulary's size", 1, 2**31 - 1),
    ):
        if not low <= value <= high:
            raise HeaderError(f"{key} is {value}, not {low} to {high}")
    if not 0 <= info.n_mtp_layers < info.n_layer:
        raise HeaderError(
            f"nextn_predict_layers is {info.n_mtp_layers}, and the model has {info.n_layer} layers in all"
        )
    low = 1 if info.n_expert else 0
    if not low <= info.n_expert_used <= info.n_expert:
        raise HeaderError(
            f"expert_used_count is {info.n_expert_used}, not {low} to expert_count, {info.n_expert}"
        )
    _check_groups(header, info)


def _check_values(header: Header, architecture: str) -> None:
    for key, value in header.metadata.items():
        if key.endswith("_epsilon") and not (isinstance(value, float | int) and 0 <= value < math.inf):
            raise HeaderError(f"metadata {key!r} is {value}, not a small positive number")
    scaling = header.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in _ROPE_SCALING:
        raise HeaderError(
            f"rope.scaling.type is {str(scaling)[:40]!r}, not one of {', '.join(_ROPE_SCALING)}"
        )
    gating = number(header, f"{architecture}.expert_gating_func", 0)
    if not 0 <= gating <= _MAX_GATING:
        raise HeaderError(f"expert_gating_func is {gating}, not 0 to {_MAX_GATING}")


def _check_attention(header: Header, info: ModelInfo, tensors: list[TensorInfo]) -> None:
    """Raise HeaderError if the sizes of heads do not fit the tensors.

    Graphs assert these sizes, and some architectures do not derive their tensors' shapes from them. Models
    whose layers differ are not checked: arrays, sliding windows with sizes of their own, linear attention.
    """

    def size(key: str, default: int | None = None) -> int | None:
        value = header.metadata.get(f"{info.architecture}.{key}", default)
        return value if isinstance(value, int) else None

    n_head, rope = size("attention.head_count"), size("rope.dimension_count")
    if not n_head:
        return
    n_head_kv = size("attention.head_count_kv", n_head)
    key, value = (size(f"attention.{name}_length", info.n_embd // n_head) for name in ("key", "value"))
    rank = size("attention.kv_lora_rank", 0) or 0
    latent_alone = rope == 0 and key == rank > 0  # the cached vector has no part with positions
    if rope is not None and key is not None and (not 0 < rope <= key or rope % 2) and not latent_alone:
        raise HeaderError(f"rope.dimension_count is {rope}, not an even number up to a head's size, {key}")
    differ = any(k.endswith("_swa") for k in header.metadata) or any(".ssm_" in t.name for t in tensors)
    if n_head_kv is None or key is None or value is None or differ:
        return
    if min(n_head, n_head_kv, key, value) < 1:
        raise HeaderError(f"it has {n_head} and {n_head_kv} heads of {key} and {value}")
    if rank and (size("attention.key_length_mla", key) or 0) <= (rope or 0):
        raise HeaderError("attention.key_length_mla leaves nothing beside rope.dimension_count")
    wanted = {"attn_k.weight": n_head_kv * key, "attn_v.weight": n_head_kv * value}
    for tensor in tensors:
        rows = wanted.get(".".join(tensor.name.rsplit(".", 2)[1:]))
        if rows is not None and tensor.shape[1:] != (rows,) and ".indexer." not in tensor.name:
            raise HeaderError(f"tensor {tensor.name!r} does not have the {rows} rows of its heads")
        # In some models a head has more rows than its query: a gate follows.
        if not rank and tensor.name.endswith(".attn_q.weight") and tensor.shape[-1] % (n_head * key):
            raise HeaderError(f"the rows of tensor {tensor.name!r} are not {n_head} heads of {key}")
    # Multi-head latent attention in its absorbed form: all heads share one latent vector.
    absorbed = rank > 0 and any(t.name.endswith(".attn_k_b.weight") for t in tensors)
    if absorbed and (n_head_kv, key) != (1, rank + (rope or 0)):
        raise HeaderError(f"{n_head_kv} heads of {key} do not fit kv_lora_rank {rank}")


def _check_positions(header: Header, info: ModelInfo) -> None:
    """Raise HeaderError for parts of a head that no image's positions fit (M-RoPE)."""
    given = header.metadata.get(f"{info.architecture}.rope.dimension_sections")
    if given is None:
        return
    values = given.values if isinstance(given, Array) else (given,) * 4
    parts = [value for value in values or () if isinstance(value, int)]
    length = number(header, f"{info.architecture}.attention.key_length", 0)
    length = length or info.n_embd // max(1, number(header, f"{info.architecture}.attention.head_count", 1))
    fits = len(parts) > 1 and min(parts) >= 0 and min(parts[:2]) > 0 and sum(parts) <= length
    if not fits and (any(parts) or not parts or info.architecture.startswith("qwen")):
        raise HeaderError(f"rope.dimension_sections is {parts}, not parts of a head's {length} numbers")


def _check_encoder(header: Header) -> None:
    """Raise HeaderError if the sizes of a projector's encoder do not fit each other or its tensors.

    Its graphs trust them. Only encoders with plain attention are checked, and Qwen's for what its graphs fix.
    """
    blocks = {name[1] for tensor in header.tensors if (name := _ENCODER_HEADS.match(tensor.name))}
    if not blocks:
        return
    n_embd, n_head, n_block, merged = (
        number(header, f"clip.vision.{key}", 0)
        for key in ("embedding_length", "attention.head_count", "block_count", "spatial_merge_size")
    )
    if "clip.vision.attention.head_dim" in header.metadata:
        return
    if not 0 < n_head <= n_embd or n_embd % n_head:
        raise HeaderError(f"clip.vision.attention.head_count is {n_head}, with {n_embd} numbers to divide")
    if not str(header.metadata.get("clip.projector_type", "")).startswith("qwen"):
        return
    if n_embd // n_head % 4:
        raise HeaderError(f"clip.vision.attention.head_count is {n_head}: {n_embd // n_head} numbers a head")
    if n_block != len(blocks):
        raise HeaderError(f"clip.vision.block_count is {n_block}, and there are {len(blocks)} blocks")
    if merged not in (0, 2):
        raise HeaderError(f"clip.vision.spatial_merge_size is {merged}, not 2")


def _check_groups(header: Header, info: ModelInfo) -> None:
    n_groups = number(header, f"{info.architecture}.expert_group_count", 0)
    n_used = number(header, f"{info.architecture}.expert_group_used_count", 0)
    if n_groups < 0 or n_groups >= max(info.n_expert, 1):
        raise HeaderError(f"expert_group_count is {n_groups}, with {info.n_expert} experts")
    if n_groups > 1 and (info.n_expert % n_groups or not 0 < n_used < n_groups):
        raise HeaderError(f"{info.n_expert} experts do not fit {n_groups} groups of which {n_used} are used")


def _check_experts(info: ModelInfo, tensors: list[TensorInfo]) -> None:
    for tensor in tensors:
        if EXPERTS.search(tensor.name) and tensor.shape[-1] != info.n_expert:
            raise HeaderError(
                f"tensor {tensor.name!r} has {tensor.shape[-1]} experts, and expert_count is {info.n_expert}"
            )
