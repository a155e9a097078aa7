"""Facts about a model, from the header of its file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from spac.model.gguf.header import TOKENS, Array, Header, HeaderError, Scalar, TensorInfo

EXPERTS = re.compile(r"\.ffn_(gate|up|down|gate_up)_exps\.")
"""The pattern of names of tensors that hold one slice per expert."""
_MTP = frozenset((
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe",
    "hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
))  # fmt: skip
"""The architectures for which the pinned library has a graph of MTP layers (`LLM_GRAPH_TYPE_DECODER_MTP`)."""
_LAYER = re.compile(r"blk\.(\d{1,9})\.")


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a model. Sizes are in bytes, over all parts of a split file."""

    path: Path
    architecture: str
    name: str
    n_layer: int
    n_expert: int
    """The number of experts of a layer; 0 for a dense model."""
    n_expert_used: int
    expert_layers: tuple[int, ...]
    """The indices of the layers with experts."""
    n_mtp_layers: int
    """The number of the model's own layers that draft for it (`draft-mtp`)."""
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    expert_bytes: int
    file_size: int
    types: dict[str, int]
    """The bytes of all tensors, by the type's name."""
    expert_types: dict[str, int]
    """The bytes of experts alone, by the type's name."""
    table_types: dict[str, int]
    """The bytes of the token embedding, by the type's name; empty if it is the output matrix too."""
    row_bytes: int
    """The bytes of embeddings per layer or n-gram, which stay in host memory: a token reads few rows."""
    layer_bytes: int
    """The bytes of the largest layer."""
    cache_width: int
    """The numbers that a layer keeps of a token, at most: its keys and values."""
    has_mtp: bool
    """True if the file has the weights of its MTP layers, and the library can draft with them."""

    @property
    def n_expert_layers(self) -> int:
        """The number of layers with experts."""
        return len(self.expert_layers)

    @property
    def n_experts(self) -> int:
        """The number of experts of all layers."""
        return self.n_expert * self.n_expert_layers

    @property
    def states(self) -> tuple[int, int]:
        """The number of layers that compute a token's hidden states, and their width."""
        return self.n_layer - self.n_mtp_layers, self.n_embd

    @property
    def device_bytes(self) -> int:
        """The bytes that a device with all layers and experts holds at most."""
        return self.file_size - self.row_bytes

    @property
    def mean_expert_layer(self) -> int:
        """The mean bytes of a layer's experts."""
        return self.expert_bytes // max(1, self.n_expert_layers)

    @property
    def is_moe(self) -> bool:
        """True if the model has experts to split."""
        return self.n_expert > 0 and self.expert_bytes > 0


def describe(path: Path, header: Header, tensors: list[TensorInfo], file_size: int) -> ModelInfo:
    """Return the facts of a checked header. Raises HeaderError.

    `tensors` and `file_size` are those of all parts.
    """
    meta = header.metadata
    architecture = str(meta["general.architecture"])

    def size(key: str, default: int = 0) -> int:
        return number(header, f"{architecture}.{key}", default)

    tokens = meta.get(TOKENS)
    experts = [t for t in tensors if EXPERTS.search(t.name)]
    table = [t for t in tensors if t.name == "token_embd.weight"]
    return ModelInfo(
        path=path,
        architecture=architecture,
        name=str(meta.get("general.name", path.stem)),
        n_layer=size("block_count"),
        n_expert=size("expert_count"),
        n_expert_used=_largest(meta.get(f"{architecture}.expert_used_count", 0)),
        expert_layers=tuple(sorted({int(found[1]) for t in experts if (found := _LAYER.match(t.name))})),
        n_mtp_layers=size("nextn_predict_layers"),
        n_ctx_train=size("context_length"),
        n_embd=size("embedding_length"),
        n_vocab=tokens.n if isinstance(tokens, Array) else size("vocab_size"),
        expert_bytes=sum(t.n_bytes for t in experts),
        file_size=file_size,
        types=_bytes_by_type(tensors),
        expert_types=_bytes_by_type(experts),
        table_types=_bytes_by_type(table if any(t.name == "output.weight" for t in tensors) else []),
        row_bytes=sum(t.n_bytes for t in tensors if t.name == "per_layer_token_embd.weight"),
        layer_bytes=max(_bytes_by_layer(tensors).values(), default=0),
        cache_width=_cache_width(header, architecture, size("embedding_length")),
        has_mtp=architecture in _MTP and any(t.name.endswith(".nextn.eh_proj.weight") for t in tensors),
    )


def _bytes_by_type(tensors: list[TensorInfo]) -> dict[str, int]:
    """Return the bytes of the tensors by type's name, the largest first."""
    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.kind.name] += tensor.n_bytes
    return dict(types.most_common())


def _bytes_by_layer(tensors: list[TensorInfo]) -> Counter[str]:
    """Return the bytes of each layer's tensors, by the layer's number."""
    layers: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.name.startswith("blk."):
            layers[tensor.name.split(".")[1]] += tensor.n_bytes
    return layers


def _cache_width(header: Header, architecture: str, n_embd: int) -> int:
    """Return the numbers that a layer keeps of a token. Models with compressed caches keep fewer."""

    def most(key: str, default: int) -> int:
        return _largest(header.metadata.get(f"{architecture}.attention.{key}", default))

    n_head = max(1, most("head_count", 1))
    head = n_embd // n_head
    return most("head_count_kv", n_head) * (most("key_length", head) + most("value_length", head))


def number(header: Header, key: str, default: int) -> int:
    """Return a whole number of the metadata. Raises HeaderError if the value is not a whole number."""
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HeaderError(f"metadata {key!r} is not a whole number")
    return value


def _largest(value: Scalar | Array) -> int:
    values = value.values or () if isinstance(value, Array) else (value,)
    return max((v for v in values if isinstance(v, int)), default=0)
