"""Checks a model file before llama.cpp sees it, because llama.cpp ends the process on some faults.

`check_model` looks at everything that the library's loader asserts instead of reporting (found by reading it and by
loading mutated files), and at what a user most often gets wrong: a folder, a half download, an adapter, one part of many.
What it leaves to the library are faults that the library reports by itself, such as an architecture it does not know.
"""

from __future__ import annotations

import math
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from gguf import GGMLQuantizationType as Type

from spac.errors import InputError
from spac.gguf_header import DAMAGED, Array, Header, HeaderFault, Scalar, TensorInfo, read_header

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS of the pinned llama.cpp: it asserts both
MAX_EXPERTS = 1024
# No operation takes weights of these types: their products have no kernel, and llama.cpp calls a null pointer.
_NO_KERNEL = frozenset((Type.F64, Type.I8, Type.I16, Type.I32, Type.I64, Type.Q8_1, Type.Q8_K))
# Added or multiplied element by element, which the CPU does in F32 only, and llama.cpp's converter writes them so.
_ELEMENTWISE = re.compile(r"(_norm\.weight|\.bias|attn_sinks\.weight|\.scale|rope_freqs\.weight)$")
_LOOKUP_TABLES = re.compile(r"tid2eid")  # token to expert: the one kind of weight that is integer
_EXPERTS = re.compile(r"\.ffn_\w+_exps\.")
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")  # llama.cpp asserts these names and these numbers
_MAX_GATING = 4
_SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class ModelInfo:
    """What a model file says about itself. Sizes in bytes, over all parts of a split file."""

    path: Path
    architecture: str
    name: str
    n_layer: int
    n_expert: int  # 0: a dense model
    n_expert_used: int
    n_expert_layers: int
    n_ctx_train: int
    n_embd: int
    tokenizer: str
    tokenizer_pre: str
    n_vocab: int
    bos: int | None
    eos: int | None
    expert_bytes: int
    file_size: int
    types: dict[str, int]  # bytes of all tensors by type's name

    @property
    def is_moe(self) -> bool:
        """Whether there are experts to split."""
        return self.n_expert > 0 and self.expert_bytes > 0


def check_model(path: str | PathLike[str], role: str = "target") -> ModelInfo:
    """Checks a GGUF file, and the other parts of a split one, by their headers; a 17 GB file takes some tenths of a second.

    `role` names what the file is given as ("target", "draft") in the remedy where that matters. Raises InputError with
    one line "<file>: <fault>; <what to do>" for whatever is wrong, and nothing else.
    """
    path = Path(path)
    try:
        _check_place(path)
        header = read_header(path)
        _check_purpose(header, role)
        headers = [header, *_other_parts(path, header)]
        for part in headers:
            _check_tensors(part)
        tensors = [tensor for part in headers for tensor in part.tensors]
        _check_names(headers, tensors)
        info = _describe(path, header, tensors, sum(part.file_size for part in headers))
        _check_sizes(header, info)
        _check_values(header, info)
        _check_experts(info, tensors)
        return info
    except HeaderFault as fault:
        raise InputError(f"{_printable(path)}: {fault}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{_printable(path)}: cannot be read ({reason}); check the path and its permissions") from None


def _printable(path: Path) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(path))


def _check_place(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.gguf"))[:3] if path.parent.is_dir() else []
        remedy = f"that folder has {', '.join(near)}" if near else "check the path"
        raise HeaderFault("there is no such file", remedy) from None
    if stat.S_ISDIR(mode):
        inside = sorted(p.name for p in path.glob("*.gguf"))[:3]
        raise HeaderFault("this is a folder", f"name a file in it: {', '.join(inside) or 'it has no .gguf file'}")
    if not stat.S_ISREG(mode):
        raise HeaderFault("this is not a regular file", "name a .gguf file")


def _check_purpose(header: Header, role: str) -> None:
    kind = header.metadata.get("general.type", "model")
    if kind == "adapter":
        raise HeaderFault("this is a LoRA adapter, not a model", f"give the model it belongs to as the {role}")
    if kind == "mmproj" or header.metadata.get("general.architecture") == "clip":
        raise HeaderFault("this is a multimodal projector, not a model", f"give the language model as the {role}")
    if kind not in ("model", ""):
        raise HeaderFault(f"this is a file of type {kind!r}, not a model", f"give a model as the {role}")
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not re.fullmatch(r"[\w.-]{1,64}", architecture):
        raise HeaderFault("general.architecture is missing or not a name", DAMAGED)


# Parts

def _other_parts(path: Path, header: Header) -> Iterator[Header]:
    n_parts = _number(header, "split.count", 1)
    if n_parts <= 1:
        return
    name = _SPLIT_NAME.search(path.name)
    if name is None or int(name[2]) != n_parts:
        raise HeaderFault(
            f"this is one of {n_parts} parts, and its name does not end in -00001-of-{n_parts:05}.gguf",
            "give the parts their names back",
        )
    parts = [path.with_name(f"{path.name[: name.start()]}-{i:05}-of-{n_parts:05}.gguf") for i in range(1, n_parts + 1)]
    if _number(header, "split.no", 0) != 0 or int(name[1]) != 1:
        raise HeaderFault(f"this is part {int(name[1])} of {n_parts}", f"give the first one, {parts[0].name}")
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise HeaderFault(f"{len(missing)} of its {n_parts} parts are missing, {missing[0]} first", "download them too")
    for i, part in enumerate(parts[1:], 1):
        try:
            other = read_header(part)
            if _number(other, "split.no", -1) != i:
                raise HeaderFault(f"it is not part {i + 1} of {n_parts}")
        except HeaderFault as fault:
            raise HeaderFault(f"its part {part.name}: {fault.fault}", fault.remedy) from None
        yield other


# Tensors

def _check_tensors(header: Header) -> None:
    expected = 0
    for tensor in header.tensors:
        if tensor.offset != expected:
            raise HeaderFault(f"the data of tensor {tensor.name!r} begins at {tensor.offset}, not at {expected}")
        expected += -(-tensor.n_bytes // header.alignment) * header.alignment
        _check_type(tensor)
    if header.data_end > header.file_size:
        short = header.data_end - header.file_size
        raise HeaderFault(f"the file is cut off: {short} of {header.data_end} bytes are missing", "download it again")


def _check_type(tensor: TensorInfo) -> None:
    if tensor.kind in _NO_KERNEL and not (tensor.kind == Type.I32 and _LOOKUP_TABLES.search(tensor.name)):
        raise HeaderFault(
            f"tensor {tensor.name!r} has the type {tensor.kind.name}, which llama.cpp cannot compute with",
            "convert the model again, to F32, F16, BF16 or a quantized type",
        )
    if tensor.kind != Type.F32 and _ELEMENTWISE.search(tensor.name):
        raise HeaderFault(
            f"tensor {tensor.name!r} has the type {tensor.kind.name}, and norms and biases must be F32",
            "convert the model again",
        )


def _check_names(headers: list[Header], tensors: list[TensorInfo]) -> None:
    if not tensors:
        raise HeaderFault("the file has no tensors (a vocabulary only)", "give a model with weights")
    if len(headers) > 1:
        twice = [name for name, n in Counter(t.name for t in tensors).items() if n > 1]
        if twice:
            raise HeaderFault(f"tensor {twice[0]!r} is in two parts")
        n_tensors = _number(headers[0], "split.tensors.count", len(tensors))
        if n_tensors != len(tensors):
            raise HeaderFault(f"its parts have {len(tensors)} tensors together, not {n_tensors}")


# Metadata

def _describe(path: Path, header: Header, tensors: list[TensorInfo], file_size: int) -> ModelInfo:
    meta = header.metadata
    architecture = str(meta["general.architecture"])

    def size(key: str, default: int = 0) -> int:
        return _number(header, f"{architecture}.{key}", default)

    tokens = meta.get("tokenizer.ggml.tokens")
    experts = [t for t in tensors if _EXPERTS.search(t.name)]
    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.kind.name] += tensor.n_bytes
    return ModelInfo(
        path=path,
        architecture=architecture,
        name=str(meta.get("general.name", path.stem)),
        n_layer=size("block_count"),
        n_expert=size("expert_count"),
        n_expert_used=_largest(meta.get(f"{architecture}.expert_used_count", 0)),
        n_expert_layers=len({t.name.split(".")[1] for t in experts}),
        n_ctx_train=size("context_length"),
        n_embd=size("embedding_length"),
        tokenizer=str(meta.get("tokenizer.ggml.model", "")),
        tokenizer_pre=str(meta.get("tokenizer.ggml.pre", "")),
        n_vocab=tokens.n if isinstance(tokens, Array) else size("vocab_size"),
        bos=_token(meta.get("tokenizer.ggml.bos_token_id")),
        eos=_token(meta.get("tokenizer.ggml.eos_token_id")),
        expert_bytes=sum(t.n_bytes for t in experts),
        file_size=file_size,
        types=dict(types.most_common()),
    )


def _number(header: Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HeaderFault(f"metadata {key!r} is not a whole number")
    return value


def _largest(value: Scalar | Array) -> int:
    values = value.values or () if isinstance(value, Array) else (value,)
    return max((v for v in values if isinstance(v, int)), default=0)


def _token(value: Scalar | Array | None) -> int | None:
    return value if isinstance(value, int) else None


def _check_sizes(header: Header, info: ModelInfo) -> None:
    for value, key, low, high in (
        (info.n_layer, "block_count", 1, MAX_LAYERS),
        (info.n_ctx_train, "context_length", 1, 2**31 - 1),
        (info.n_embd, "embedding_length", 1, 2**31 - 1),
        (info.n_expert, "expert_count", 0, MAX_EXPERTS),
        (info.n_vocab, "the vocabulary's size", 1, 2**31 - 1),
    ):
        if not low <= value <= high:
            raise HeaderFault(f"{key} is {value}, not {low} to {high}")
    n_nextn = _number(header, f"{info.architecture}.nextn_predict_layers", 0)
    if not 0 <= n_nextn < info.n_layer:
        raise HeaderFault(f"nextn_predict_layers is {n_nextn}, and the model has {info.n_layer} layers in all")
    low = 1 if info.n_expert else 0
    if not low <= info.n_expert_used <= info.n_expert:
        raise HeaderFault(f"expert_used_count is {info.n_expert_used}, not {low} to expert_count, {info.n_expert}")
    _check_groups(header, info)


def _check_values(header: Header, info: ModelInfo) -> None:
    for key, value in header.metadata.items():
        if key.endswith("_epsilon") and not (isinstance(value, float | int) and 0 <= value < math.inf):
            raise HeaderFault(f"metadata {key!r} is {value}, not a small positive number")
    scaling = header.metadata.get(f"{info.architecture}.rope.scaling.type", "none")
    if scaling not in _ROPE_SCALING:
        raise HeaderFault(f"rope.scaling.type is {str(scaling)[:40]!r}, not one of {', '.join(_ROPE_SCALING)}")
    gating = _number(header, f"{info.architecture}.expert_gating_func", 0)
    if not 0 <= gating <= _MAX_GATING:
        raise HeaderFault(f"expert_gating_func is {gating}, not 0 to {_MAX_GATING}")
    heads = header.metadata.get(f"{info.architecture}.attention.head_count")
    rope = header.metadata.get(f"{info.architecture}.rope.dimension_count")
    if isinstance(rope, int) and isinstance(heads, int) and heads > 0:
        size = _number(header, f"{info.architecture}.attention.key_length", info.n_embd // heads)
        if not 0 < rope <= size or rope % 2:
            raise HeaderFault(f"rope.dimension_count is {rope}, not an even number up to a head's size, {size}")


def _check_groups(header: Header, info: ModelInfo) -> None:
    n_groups = _number(header, f"{info.architecture}.expert_group_count", 0)
    n_used = _number(header, f"{info.architecture}.expert_group_used_count", 0)
    if n_groups < 0 or n_groups >= max(info.n_expert, 1):
        raise HeaderFault(f"expert_group_count is {n_groups}, with {info.n_expert} experts")
    if n_groups > 1 and (info.n_expert % n_groups or not 0 < n_used < n_groups):
        raise HeaderFault(f"{info.n_expert} experts do not fit {n_groups} groups of which {n_used} are used")


def _check_experts(info: ModelInfo, tensors: list[TensorInfo]) -> None:
    for tensor in tensors:
        if _EXPERTS.search(tensor.name) and tensor.shape[-1] != info.n_expert:
            raise HeaderFault(
                f"tensor {tensor.name!r} has {tensor.shape[-1]} experts, and expert_count is {info.n_expert}"
            )
