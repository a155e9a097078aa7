"""Layers on RPC servers: the connections, the number of layers on each device, and where layers go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spac import _core, env
from spac.config import EngineConfig
from spac.config.engine import DEFAULT_CONTEXT
from spac.config.remote import MOST_DEVICES
from spac.errors import DeviceError, InputError, OutOfMemoryError, SpacError
from spac.machine import host_memory
from spac.machine.device_memory import margin, size
from spac.model.gguf.info import ModelInfo

TIMEOUT_S = 60.0
"""Seconds for which a server may be silent, unless SPAC_RPC_TIMEOUT says otherwise."""
_CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0}
"""The bytes of a number in the cache by its type. Other types have at most 1.1."""


class RemoteLayers:
    """The target's layers that are on RPC servers, whole and with all their experts."""

    def __init__(self, config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None) -> None:
        """Connect to the servers of `config.rpc`, and decide how many layers each has.

        Raise InputError for a server that cannot be used, and for numbers of layers that do not fit.
        """
        timeout = env.RPC_TIMEOUT.get()
        _core.set_rpc_timeout(TIMEOUT_S if timeout is None else timeout)
        self._servers: list[_core.RemoteServer] = []
        for address in config.rpc or ():
            host, port = address.rsplit(":", 1)
            self._servers.append(_core.RemoteServer(host, int(port)))
        self._n_layer = info.n_layer
        self._devices = [each for server in self._servers for each in server.devices]
        if len(self._devices) >= MOST_DEVICES:
            raise InputError(
                f"rpc: the servers offer {len(self._devices)} devices, and {MOST_DEVICES - 1} work: let "
                "them lend fewer (`spac rpc-server --device`)"
            )
        self._counts = self._count(config, info, device)
        """The number of layers on each device."""
        self._entries = _core.SlotLayers()

    def close(self) -> None:
        """Close the connections. Models and contexts that use them must be closed before."""
        self._devices.clear()
        self._servers.clear()

    @property
    def n_layers(self) -> int:
        """The number of the target's layers on all servers."""
        return sum(self._counts)

    @property
    def handles(self) -> tuple[int, ...]:
        """The devices that have layers, as addresses for llama_model_params.devices."""
        return tuple(each.handle for each, n in zip(self._devices, self._counts, strict=True) if n)

    @property
    def by_server(self) -> dict[str, int]:
        """The number of layers by the server's address."""
        counts = iter(self._counts)
        return {server.address: sum(next(counts) for _ in server.devices) for server in self._servers}

    @property
    def loss(self) -> str:
        """The reason why a server is lost; "" if none is."""
        return next((server.loss for server in self._servers if server.loss), "")

    def rest(self, info: ModelInfo) -> ModelInfo:
        """Return `info` with the bytes of the layers that stay here, as if all layers were alike."""
        there = self.n_layers / max(1, info.n_layer)
        experts, dense = info.expert_bytes, info.file_size - info.expert_bytes
        gone = int(there * experts), int(there * min(dense, info.n_layer * info.layer_bytes - experts))
        return replace(info, expert_bytes=experts - gone[0], file_size=info.file_size - sum(gone))

    def fields(self, wanted: int | None, *, has_device: bool) -> dict[str, Any]:
        """Return the fields of llama_model_params, and `layer_split`, that put layers where they belong.

        `wanted` is `--gpu-layers`: the layers on this machine's device, the output among them; None means
        all. llama.cpp puts layers that no device gets on the CPU, and then fills the devices in their order.
        `layer_split` is a list of the devices' parts. The fields hold until the next call.
        """
        if not self.n_layers:
            return {}
        counts = [n for n in self._counts if n]
        most = self._n_layer + 1 - self.n_layers
        here = 0 if not has_device else most if wanted is None else min(wanted, most)
        self._entries = _core.SlotLayers()
        if here:
            shares = [*counts, here]
        else:
            # llama.cpp counts the output as the last device's. It stays here, since logits are large.
            self._entries.keep_output()
            shares = [*counts[:-1], counts[-1] + 1, *([0] * has_device)]
        fields = {"n_gpu_layers": self.n_layers + max(1, here), "layer_split": shares}
        if not here:
            fields["tensor_buft_overrides"] = self._entries.address
        return fields

    def note(self, here: int) -> str:
        """Return a note on the layers' places. `here` layers are on this machine's device."""
        first, parts = self._n_layer - self.n_layers - here, []
        for address, n in self.by_server.items():
            parts.append(f"{n} on {address} (from layer {first})" if n else f"none on {address}")
            first += n
        return f"--rpc: of {self._n_layer} layers, {', '.join(parts)}, whole and with all their experts"

    def failure(self, error: SpacError) -> SpacError:
        """Return the error to raise for a failed load: a lost server is the cause of whatever failed."""
        if loss := self.loss:
            return DeviceError(loss)
        if isinstance(error, OutOfMemoryError) and "RPC" in str(error):
            places = ", ".join(f"{n} on {address}" for address, n in self.by_server.items())
            return OutOfMemoryError(
                f"{error}: a server has no memory for its layers ({places}): give fewer with --rpc-layers"
            )
        return error

    def _count(
        self, config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None
    ) -> tuple[int, ...]:
        if config.rpc_layers is not None:
            return self._given(config.rpc_layers)
        cost = info.layer_bytes + layer_cache_bytes(config, info)
        rooms = [
            max(0, each.memory_free - margin(each.memory_total, shares_host_memory=False))
            for each in self._devices
        ]
        here = host_memory.available() if device is None else device.memory.free
        counts = counts_by_memory(info.n_layer, cost, rooms, here)
        if not any(counts):
            free_there = ", ".join(
                f"{size(sum(each.memory_free for each in server.devices))} on {server.address}"
                for server in self._servers
            )
            raise InputError(
                f"rpc: no server has memory for a layer of {info.path.name} ({size(cost)}): "
                f"{free_there} are free; leave --rpc out"
            )
        return counts

    def _given(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the user's numbers, divided among each server's devices by their free memory."""
        if sum(layers) > self._n_layer:
            raise InputError(f"rpc_layers: {sum(layers)} layers, and the model has {self._n_layer}")
        counts: list[int] = []
        for server, n in zip(self._servers, layers, strict=True):
            counts += divided(n, [each.memory_free for each in server.devices])
        return tuple(counts)


def layer_cache_bytes(config: EngineConfig, info: ModelInfo) -> int:
    """Return the bytes of a layer's part of the context, at most."""
    n_ctx = min(DEFAULT_CONTEXT, info.n_ctx_train) if config.ctx is None else config.ctx
    widest = max(_CACHE_BYTES.get(each, 1.1) for each in (config.cache_type_k, config.cache_type_v))
    return int((n_ctx or info.n_ctx_train) * info.cache_width * widest)


def counts_by_memory(n_layer: int, cost: int, rooms: Sequence[int], here: int) -> tuple[int, ...]:
    """Return the number of layers for each remote device.

    A layer takes `cost` bytes. `rooms` has the devices' bytes for layers, and `here` is this machine's. If
    all of it holds the model, each device gets its share of the layers. Otherwise it gets what fits: the
    layers that stay here can be larger than the device here, since their experts are in host memory.
    """
    fits, left, counts = [room // max(1, cost) for room in rooms], n_layer, []
    total = sum(rooms) + here
    for room, most in zip(rooms, fits, strict=True):
        n = most
        if total >= n_layer * cost:
            n = min(most, max(1, round(n_layer * room / total)))
        counts.append(min(n, left))
        left -= counts[-1]
    return tuple(counts)


def divided(n: int, weights: Sequence[float]) -> list[int]:
    """Return `n` as a sum of whole numbers that are in proportion to `weights`."""
    total, parts, done, before = sum(weights) or len(weights), [], 0, 0.0
    for weight in weights:
        before += weight if sum(weights) else 1
        parts.append(round(n * before / total) - done)
        done += parts[-1]
    return parts
