"""The pair of target and draft: loads them onto the chosen device, makes their contexts, and closes both."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from spac import _core, env
from spac.config import EngineConfig
from spac.config.context import WHOLE_TYPES
from spac.config.engine import AUTO_PARALLEL, DEFAULT_CONTEXT
from spac.config.remote import MOST_DEVICES
from spac.config.values import StreamBatch
from spac.errors import InputError, OutOfMemoryError, SpacError
from spac.machine import nvidia
from spac.machine.cpu import default_threads, missing_features, physical_cores, threads_advice
from spac.machine.device_memory import simulated_index, size
from spac.machine.topology import numa_advice
from spac.model import kernels
from spac.model.c_api import MTP, Context, Model
from spac.model.devices import choose_devices, current, devices_of, room_on, set_switches, without_kernels
from spac.model.fit_layers import load_what_fits
from spac.model.gguf.check import check_model
from spac.model.gguf.info import ModelInfo
from spac.model.huge_pages import Copying, obstacle
from spac.model.images import open_projector
from spac.model.lora import apply_adapters, load_adapters
from spac.model.paging import give_back, is_paged, paging_note
from spac.model.params import (
    LOAD_MODES,
    context_values,
    draft_rows,
    model_values,
    sequence_values,
    target_rows,
)
from spac.model.pinning import pinning_note, set_pinning
from spac.model.remote import RemoteLayers
from spac.model.slot_layers import SlotLayers
from spac.model.thread_pool import SharedPool, place
from spac.model.whole import all_fit

LoadProgress = Callable[[Path, float], bool]
"""A callback that gets the file and its loaded share, 0 to 1. It returns False to stop loading."""

Owned = TypeVar("Owned", Model, Context)


class ModelPair:
    """Owns the models and contexts of an engine. The experts of target and draft are kept apart."""

    devices: tuple[_core.DeviceInfo, ...] = ()
    """The devices that share the target's layers; none on the CPU alone."""
    device: _core.DeviceInfo | None = None
    """The main device, which has the draft and the projector too; None on the CPU alone."""
    draft: Model | None = None
    """The draft model; None without a separate one."""
    draft_context: Context | None = None
    """The draft's context; None if no model drafts."""
    draft_experts: _core.Experts | None = None
    """The experts of a separate draft model; None without one, or on the CPU."""
    draft_tap: _core.Tap | None = None
    """The tap that shows the draft's states to routers, off at first; None without a separate draft model."""

    target_states: tuple[int, int] = (0, 0)
    """The number of the target's layers, without those that only predict further tokens, and their width."""

    pool: SharedPool | None = None
    """The threads for graph parts on the CPU outside the split; None if there are no such parts."""

    projector: _core.Projector | None = None
    """The projector, with which the target sees images; None without one."""

    remote: RemoteLayers | None = None
    """The layers on RPC servers; None without `--rpc`."""

    slot_layers: SlotLayers | None = None
    """The layers whose experts have slots on other devices than the main one; None without such devices."""

    threads: int
    """The number of CPU threads that compute a token."""

    info: ModelInfo
    """What the header of the target's file says."""

    n_sequences: int = 1
    """The number of sequences that the contexts have places for."""

    paged: bool = False
    """True if the target's experts stay in the file and are read when they are needed."""

    whole: bool = False
    """True if the models run without the split because all experts fit on the devices."""

    def __init__(self, config: EngineConfig, progress: LoadProgress | None, *, all_rows: bool = True) -> None:
        """Load both models and make their contexts.

        With `all_rows`, the target's context has memory for the logits of every token of a batch. A loop
        needs only those of its longest verification. Raises InputError, OutOfMemoryError or SpacError, with
        one line. Nothing stays loaded then.
        """
        self._config, self._progress, self._all_rows = config, progress, all_rows
        self._closing = ExitStack()
        self.copied: list[Model] = []
        """The models whose files were copied to memory instead of being mapped."""
        self.notes: list[str] = []
        """Notes for the user about how the models run, one line each."""
        try:
            self._load()
        except SpacError as error:
            cause = self._explained(error)
            self.close()
            if cause is error:
                raise
            raise cause from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the contexts, then the models, and close connections. Calling it again does nothing."""
        self._free()
        if self.remote is not None:
            self.remote.close()

    def _free(self) -> None:
        """Free the contexts, then the models."""
        self.projector = None  # It is freed with its last user, before the models.
        self._closing.close()

    def _load(self) -> None:
        config, target = self._config, Path(self._config.target)
        info = check_model(target, "target", config.override_kv)
        self._has_experts = info.is_moe
        draft = None
        if (draft_file := self._draft_file) is not None:
            draft = check_model(draft_file, "draft", config.override_kv)
            if draft.file_size > info.file_size:
                names = f"the draft {draft.path.name} is larger than the target {info.path.name}"
                self.notes.append(f"{names}: swap them if that is a mistake")
        self.devices, self.device = self._choose_devices()
        self._fit_to_cpu(info, draft)
        self._note_device()
        self._connect(info)
        pages = is_paged(config, self._rest(info), self.device)
        n_notes = len(self.notes)

        def unload() -> None:
            self._free()
            self.copied.clear()
            del self.notes[n_notes:]

        def load(chosen: EngineConfig) -> None:
            self._config = chosen
            with self._whole_if_it_fits(info, draft, pages=pages):
                self._open_all(info, draft)

        load_what_fits(config, info.n_layer, load, unload)

    @contextmanager
    def _whole_if_it_fits(self, info: ModelInfo, draft: ModelInfo | None, *, pages: bool) -> Iterator[None]:
        """Decide whether the models that load in this scope run without the split.

        With it, `pages` says if experts stay in the file. Raise OutOfMemoryError if a model without it leaves
        less than the margin of a device.
        """
        config = self._config
        unsplit = config.cpu_expert_layers is not None and bool(self.devices)
        fits = not unsplit and all_fit(config, info, draft, self.devices)
        self.whole = unsplit or (fits and not config.keeps_split)
        self.paged = pages and not self.whole
        how = config.keeps_split or "llama.cpp computes the model there, without the split"
        self.notes += [f"all experts fit on {self.device_names}: {how}"] if fits else []
        try:
            yield
            self.refresh_devices()
            for device in self.devices if self.whole else ():
                if not room_on(device)[1]:
                    raise OutOfMemoryError(f"too little of {device.name} is left to the driver's libraries")
        except OutOfMemoryError as error:
            error.whole = self.whole
            raise

    def _explained(self, error: SpacError) -> SpacError:
        """Return the error to raise for a failed load, with the remedy that several devices offer."""
        if self.remote is not None:
            return self.remote.failure(error)
        known = [device.name for device in self.devices]
        named = [name for name in known if re.search(rf"\b{re.escape(name)}\b", str(error))]
        if not isinstance(error, OutOfMemoryError) or error.whole or len(known) == 1 or not named:
            return error
        if self.slot_layers is None:
            return OutOfMemoryError(f"{error}; --tensor-split can give a device fewer layers")
        if named == known[:1]:
            return error
        return OutOfMemoryError(
            f"{error}; leave {named[-1]} out of --slot-devices, or give a smaller --ubatch"
        )

    def _choose_devices(self) -> tuple[tuple[_core.DeviceInfo, ...], _core.DeviceInfo | None]:
        """Return the devices in use, and the main one; none and None for the CPU alone."""
        devices, main = devices_of(self._config)
        if main is None or not self._config.slot_devices:
            return devices, main
        if self._has_experts:
            self._note_unused_devices(main, "--slot-devices")
            return devices, main
        self.notes.append(f"--slot-devices: not used, for {Path(self._config.target).name} has no experts")
        return (main,), main

    def _note_unused_devices(self, main: _core.DeviceInfo, option: str) -> None:
        """Add a note if an option lets the layers be on one device, and "auto" would have taken several."""
        slots = {name.lower() for name in self._config.slot_devices or ()}
        found = [each for each in choose_devices(self._config.device) if each.name.lower() not in slots]
        if self._config.split_mode != "none" and len(found) > 1:
            use = "is used for layers" if slots else "is used"
            self.notes.append(f"{option}: of this machine's devices, {main.name} alone {use}")

    def _fit_to_cpu(self, info: ModelInfo, draft: ModelInfo | None) -> None:
        """Set the number of threads, and choose the kernels for both models."""
        self.threads = self._config.threads or self._default_threads
        types = {*info.types, *(draft.types if draft is not None else ())}
        kernels.choose(types, self.threads)

    def _connect(self, info: ModelInfo) -> None:
        """Connect to the RPC servers, and decide which layers they have."""
        if self._config.rpc:
            self.remote = RemoteLayers(self._config, info, self.device)
            if self.device is not None:
                self._note_unused_devices(self.device, "--rpc")

    def _place_slots(self, info: ModelInfo, draft: ModelInfo | None) -> None:
        """Decide which layers' experts have slots on the devices with slots alone, if there are any."""
        self.slot_layers = None
        if self.device is not None and self._config.slot_devices and self._has_experts:
            others = [device for device in self.devices if device.name != self.device.name]
            there = None if self.draft_on_cpu else draft
            self.slot_layers = SlotLayers(self._config, info, self.device, others, there)

    def _slot_fields(self) -> tuple[dict[str, int], list[float], _core.SlotLayers | None]:
        """Return fields of llama_model_params, parts of the layers, and an object that loading needs.

        They give the devices with slots alone the experts of some layers, and nothing else. All three are
        empty without such devices.
        """
        if self.slot_layers is None:
            return {}, [], None
        entries = self.slot_layers.entries()
        parts = [1.0, *(0.0 for _ in self.devices[1:])]
        return {"tensor_buft_overrides": entries.address}, parts, entries

    def _rest(self, info: ModelInfo) -> ModelInfo:
        """Return the facts of the part of the target that stays on this machine."""
        return info if self.remote is None else self.remote.rest(info)

    def _remote_fields(self) -> dict[str, Any]:
        """Return the fields of llama_model_params for layers on RPC servers; none without them."""
        if self.remote is None:
            return {}
        weights = () if self.device is None else (1,)
        fields = self.remote.fields(self._config.gpu_layers.count, weights)
        if "tensor_split" in fields:
            fields["tensor_split"] = (ctypes.c_float * MOST_DEVICES)(*fields["tensor_split"])
        return fields

    @property
    def _handles(self) -> tuple[int, ...]:
        """The devices of the target, as addresses: those of RPC servers, then this machine's."""
        remote = () if self.remote is None else self.remote.handles
        here = (_core.device_handle(device.name, split=not self.whole) for device in self.devices)
        return (*remote, *here)

    @property
    def unsplit(self) -> str:
        """A message for what needs the split of a target that runs without it."""
        remedy = ", for all its experts fit: start with --slots, or with a smaller --vram-limit"
        return f"{Path(self._config.target).name} runs without the split{remedy if self.whole else ''}"

    @property
    def layers_here(self) -> int:
        """The number of the target's layers that are on this machine."""
        return self.target.n_layer - (0 if self.remote is None else self.remote.n_layers)

    def _note_paging(self, info: ModelInfo) -> None:
        """Add a note about paging. Call it when `experts` is known: without experts nothing is paged."""
        self.paged = self.paged and self.experts is not None
        if self.paged and self._config.paging == "auto":
            self.notes.append(paging_note(self._rest(info)))

    def _give_back(self, info: ModelInfo, draft: ModelInfo | None) -> None:
        """Give the system's cache of weights back that the device holds, if memory is short."""
        if self.paged:
            give_back(info.path)
            if draft is not None:
                give_back(draft.path, experts_too=True)

    def _note_pinning(self) -> None:
        """Add a note about pinning. Call it after contexts are made, because that pins the experts."""
        if self.experts is not None and self.device is not None:
            note = pinning_note(Path(self._config.target).name, self.experts, self.device)
            self.notes += [note] if note else []

    @property
    def _draft_file(self) -> Path | None:
        needs_draft = any(name.startswith("draft-") for name in self._config.draft_types)
        return Path(self._config.draft) if self._config.draft and needs_draft else None

    def _open_all(self, info: ModelInfo, draft: ModelInfo | None) -> None:
        config = self._config
        types, target = config.draft_types, Path(config.target)
        self.info = info
        self._place_slots(info, draft)
        self.target_states = _states_of(info)
        self._cpu_draft_states = (0, 0) if draft is None else _states_of(draft)
        self.target, experts = self._open(info, load_mtp="draft-mtp" in types and draft is None)
        load_adapters(self.target, config.lora)
        self.draft = self._open_draft(draft)
        self._check_pair()
        with self._room_for_prompts(experts):
            self._open_contexts()
        self._open_projector(info.n_embd)
        self.experts = experts if experts is not None and experts.n_layer > 0 else None
        """The target's experts; None if there are none to split."""
        self._note_paging(info)
        self._give_back(info, draft)
        self._note_pinning()
        self._note_layers()
        self._note_context()
        self._note_mtp()
        if self.experts is None and not self.whole:
            reason = "device cpu" if self.device is None else f"{target.name} has no experts"
            where = f"on {self.device_names}" if self.device is not None else "on the CPU"
            if self.device is None or self.layers_on_device:
                self.notes.append(f"{reason}: runs as plain llama.cpp {where}")

    @property
    def device_names(self) -> str:
        """The devices' names, with commas between them; "cpu" without a device."""
        return ",".join(device.name for device in self.devices) or "cpu"

    def refresh_devices(self) -> None:
        """Read the devices' memory anew."""
        self.devices = tuple(current(device) for device in self.devices)
        self.device = current(self.device) if self.device is not None else None

    @property
    def layers_on_device(self) -> int:
        """The number of the target's layers whose dense parts are on a device."""
        wanted = self._config.gpu_layers.count
        if self.device is None:
            return 0
        n_layer = self.layers_here
        return n_layer if wanted is None else max(0, min(wanted - 1, n_layer))  # the output counts as one

    @property
    def setup(self) -> str:
        """A text of the settings that change the costs of these files; "" if there are none."""
        config, parts = self._config, []
        if self.slot_layers is not None:
            parts.append(f"slots alone on {self.device_names}: {self.slot_layers.counts}")
        elif len(self.devices) > 1:
            parts.append(f"layers of {self.device_names} as {config.tensor_split or 'their memory'}")
        if self.whole:
            parts.append("without the split")
        if self.device is not None and self.layers_on_device != self.target.n_layer:
            parts.append(f"{self.layers_on_device} layers")
        if self.remote is not None:
            parts += [f"{n} layers on {address}" for address, n in self.remote.by_server.items()]
        for name in ("cache_type_k", "cache_type_v", "cache_type_k_draft", "cache_type_v_draft"):
            if (kind := getattr(config, name)) != "f16":
                parts.append(f"{name} {kind}")
        parts += [f"{name} {value}" for name, value in sorted(config.override_kv.items())]
        parts += [f"lora {adapter.path.name}" for adapter in config.lora]
        if self.paged:
            parts.append("paged")
        elif self.experts is not None and self.experts.host_bytes.why:
            parts.append("not all pinned")
        if self.target in self.copied:
            parts.append("2 MB pages")
        if not config.kv_offload:
            parts.append("cache on the CPU")
        if config.gpu_layers_draft.count is not None:
            parts.append(f"{config.gpu_layers_draft} layers of the draft")
        return "".join(f", {part}" for part in parts)

    def _note_layers(self) -> None:
        on_device, n_layer = self.layers_on_device, self.layers_here
        if self.slot_layers is not None:
            self.notes.append(self.slot_layers.note)
        if self.remote is not None:
            self.notes.append(self.remote.note(on_device))
        if self.device is None or on_device == n_layer:
            return
        where = f"no layer is on {self.device_names}: everything is computed on the CPU"
        if on_device:
            names = self.device_names if self.slot_layers is None else self.device.name
            where = (
                f"the last {on_device} of {n_layer} layers are on {names}; the others, with "
                "their experts, are computed on the CPU"
            )
        self.notes.append(f"--gpu-layers {self._config.gpu_layers}: {where}")

    def _note_context(self) -> None:
        wanted, size = self._config.ctx, self.target_context.size
        if wanted and wanted < size < wanted + 256:
            self.notes.append(f"--ctx {wanted}: the context holds {size} tokens, a multiple of 256")

    def _note_mtp(self) -> None:
        config = self._config
        drafts = config.draft is not None or config.draft_type is not None
        if self.target.has_mtp and not drafts and config.longest_draft:
            name = Path(config.target).name
            self.notes.append(f"{name} has layers that draft for it: --draft-type draft-mtp uses them")

    def _note_device(self) -> None:
        device = self.device
        self.notes += set_switches(self.devices)
        set_pinning()
        by_default = self._config.device.lower() == "auto"
        if by_default and not env.DEVICE.get():
            self.notes += without_kernels(_core.devices())
        if device is None and by_default and self._has_experts and not env.DEVICE.get():
            why = nvidia.too_old(_core.cuda_version) or "see `spac doctor`"
            self.notes.append(f"no GPU found ({why}): everything runs on the CPU")
        if device is None and not self._config.rpc and (unused := self._config.unused_on_cpu):
            self.notes.append(unused)
        if by_default and device is not None and simulated_index(device.name) is not None:
            self.notes.append(
                "no GPU found (see `spac doctor`): a simulated device on the CPU shows the split; "
                "--device cpu is faster"
            )
        self._limit_memory()
        self.notes += missing_features(_core.system_info())
        self._place_threads()

    def _place_threads(self) -> None:
        """Choose the CPUs of threads that are made later, and add notes about settings to change."""
        cpus = place(max(self.threads, self.prompt_threads))
        advice = (threads_advice(self.threads, physical_cores(), self._default_threads), numa_advice(cpus))
        self.notes += [line for line in advice if line is not None]

    def _limit_memory(self) -> None:
        """Set this configuration's memory limit on each device, which replaces an earlier one."""
        limit = self._config.vram_limit
        for device in self.devices:
            total = device.memory.total
            n_bytes = 0 if limit is None else limit.of(total)
            _core.set_memory_limit(device.name, n_bytes)
            if n_bytes > total:
                self.notes.append(f"--vram-limit {size(n_bytes)}: {device.name} has {size(total)}")
        self.refresh_devices()

    @contextmanager
    def _room_for_prompts(self, experts: _core.Experts | None) -> Iterator[None]:
        """Make contexts in this scope reserve the memory for prefill streaming.

        Later, only the memory that slots leave would be there for it.
        """
        wanted = self._config.stream_batch
        if wanted is None:
            wanted = StreamBatch(0 if self.device is None or self._shares_cores else None)
        tokens = wanted.tokens
        if experts is None or tokens == 0:
            yield
            return
        experts.set_stream_tokens(StreamBatch.LEAST if tokens is None else tokens)
        try:
            yield
        finally:
            experts.set_stream_tokens(0)  # off until measured costs give a batch size

    def _open(
        self, info: ModelInfo, *, load_mtp: bool, is_draft: bool = False
    ) -> tuple[Model, _core.Experts | None]:
        path, paged = info.path, self.paged and not is_draft
        values = model_values(self._config, is_draft=is_draft, on_device=self.device is not None)
        if not is_draft and self.device is None and self._has_experts and not kernels.repacks(info):
            values["use_extra_bufts"] = False
        if paged:
            values["load_mode"] = LOAD_MODES["mmap"]  # auto does not map on every device
        if not is_draft:
            values |= self._remote_fields()
        if (split := values.get("tensor_split")) is not None:  # The library copies it while it loads.
            values["tensor_split"] = ctypes.addressof(split)
        params = {**values, "load_mtp": load_mtp, **self._config.model_params}
        devices, slot_entries = self._handles, None
        if is_draft:
            name = None if self.device is None else self.device.name
            devices = () if name is None else (_core.device_handle(name, split=not self.whole),)
        elif self._config.cpu_expert_layers is not None and self.whole:
            slot_entries = _core.SlotLayers()
            slot_entries.keep_experts(list(info.expert_layers[: self._config.cpu_expert_layers]))
            params = {"tensor_buft_overrides": slot_entries.address, **params}
        elif self.slot_layers is not None:
            fields, parts, slot_entries = self._slot_fields()
            params = {"layer_split": parts, **fields, **params}
        elif len(self.devices) > 1 and self._config.tensor_split is not None:
            params = {"layer_split": list(self._config.tensor_split), **params}
        copying = self._copying(info, params, is_draft=is_draft)
        with copying.scope(paged=paged) as scope:
            model = self._keep(Model(path, devices, params, copying.loading))
        del slot_entries  # The library has read them.
        self._note_copy(model, copying)
        return model, None if self.device is None else scope.experts

    def _copying(self, info: ModelInfo, params: dict[str, Any], *, is_draft: bool = False) -> Copying:
        wanted, why, progress = self._config.huge_pages == "on", "", self._progress
        if wanted:
            paged = self.paged and not is_draft
            why = obstacle(self._config, info, params, self.device, paged=paged, is_draft=is_draft)
        report = None if progress is None else lambda done: progress(info.path, done)
        return Copying(info, report, copies=wanted and not why, obstacle=why)

    def _note_copy(self, model: Model, copying: Copying) -> None:
        self.notes += copying.notes()
        if copying.n_bytes:
            self.copied.append(model)

    def _open_draft(self, info: ModelInfo | None) -> Model | None:
        if info is None:
            return None
        draft, self.draft_experts = self._open(
            info, load_mtp="draft-mtp" in self._config.draft_types, is_draft=True
        )
        if self.draft_experts is not None:
            self.draft_experts.set_counting(False)
        return draft

    def _keep(self, owned: Owned) -> Owned:
        self._closing.callback(owned.close)
        return owned

    def _check_pair(self) -> None:
        if self.target.has_encoder:
            raise InputError(f"{self.target.path}: an encoder-decoder model; only decoders can be run")
        types = self._config.draft_types
        if "draft-mtp" in types and not (self.draft or self.target).has_mtp:
            raise InputError(
                f"{(self.draft or self.target).path}: no layers for draft-mtp; choose another --draft-type"
            )
        if self.draft is None or "draft-simple" not in types:
            return
        fault = _core.vocab_mismatch(self.target.pointer, self.draft.pointer)
        if fault:
            raise InputError(
                f"the draft {self.draft.path} does not fit the target {self.target.path}: "
                f"their vocabularies differ ({fault})"
            )

    def _context_size(self, trained: int) -> int:
        if self._config.ctx is None:
            return min(DEFAULT_CONTEXT, trained)
        return self._config.ctx or trained

    def _open_contexts(self) -> None:
        config, types = self._config, self._config.draft_types
        self.n_sequences = self._sequences()
        size = self._context_size(self.info.n_ctx_train)
        self.pool = self._new_pool()
        if self.pool is not None:
            self._closing.callback(self.pool.close)  # runs after the contexts are closed
        # A recurrent memory keeps no versions (n_rs_seq), because it forgets which batch one is of.
        self.target_context = self._context(
            self.target, n_ctx=size, **self._target_rows, **sequence_values(config, self.n_sequences),
            **self._whole_graphs,
        )  # fmt: skip
        apply_adapters(self.target, self.target_context)
        needs_draft = any(name.startswith("draft-") for name in types)
        self.draft_context = self._open_draft_context() if needs_draft else None

    def _open_projector(self, n_embd: int) -> None:
        if self._config.mmproj is not None:
            threads = self.prompt_threads
            self.projector = open_projector(self._config, self.target, n_embd, self.device, threads)

    def _new_pool(self) -> SharedPool | None:
        """Return a pool for graph parts on the CPU; None if the split does all work of the CPU."""
        config = self._config
        whole = self.device is not None and self.layers_on_device == self.layers_here
        if config.cpu_expert_layers is not None:
            whole = False
        if whole and config.kv_offload and config.gpu_layers_draft.count is None:
            return None
        return SharedPool(cpu_alone=self.device is None)

    def _wanted_sequences(self) -> int:
        """Return the number of sequences as far as the configuration and the file's header tell."""
        return self._config.fitting_parallel(self._context_size(self.info.n_ctx_train))

    def _sequences(self) -> int:
        """Return the number of sequences, and add notes about those that cannot be had."""
        config = self._config
        n, wanted = self._wanted_sequences(), config.n_parallel
        why = "--deterministic would give each a part of the context" if config.deterministic else ""
        if n < wanted:
            why = f"--ctx {self._context_size(self.info.n_ctx_train)} and --batch {config.batch}"
        elif 1 <= n < AUTO_PARALLEL and config.parallel == -1 and not why:
            why = "the memory has no place for more"
        if why and config.parallel == -1:
            at_once = "one generation at a time" if n == 1 else f"{n} generations at once"
            self.notes.append(f"{at_once}, for {why} (--parallel)")
        return n

    @property
    def sequence_context(self) -> int:
        """The number of tokens that one sequence may have."""
        shares = sequence_values(self._config, self.n_sequences).get("kv_unified", True)
        size = self.target_context.size
        return size if shares else size // self.n_sequences

    @property
    def _whole_graphs(self) -> dict[str, int]:
        """The field that makes each batch of llama.cpp's server one graph, for a sliding window; or none.

        While llama.cpp looks for the places of a batch's later graphs, it removes tokens from the window that
        the earlier ones still see (`llama_kv_cache::prepare`), also with `--swa-full`.
        """
        return {"n_batch": self._config.ubatch.least} if self.target.has_window else {}

    @property
    def _target_rows(self) -> dict[str, Any]:
        return {} if self._all_rows else target_rows(self._config, self.n_sequences)

    def _open_draft_context(self) -> Context:
        """Make the draft's context as llama.cpp's own programs do.

        A draft that uses the target's hidden states gets the target's context.
        """
        params: dict[str, Any] = {
            "n_ctx": self.target_context.size, **draft_rows(self._config, self.n_sequences),
            **sequence_values(self._config, self.n_sequences),
        }  # fmt: skip
        if "draft-simple" not in self._config.draft_types:
            params["ctx_other"] = self.target_context.pointer
        if "draft-mtp" in self._config.draft_types:
            params["ctx_type"] = MTP
        if self.draft is None:
            return self._context(self.target, **params)
        with _core.Tap() as self.draft_tap:
            if self.draft_on_cpu and self.device is not None:
                params["cb_eval"], params["cb_eval_user_data"] = self.draft_tap.callback
            return self._context(self.draft, **params)

    @property
    def draft_on_cpu(self) -> bool:
        """True if no layer of the draft is on the device."""
        return self.device is None or self._config.gpu_layers_draft.count == 0

    @property
    def draft_states(self) -> tuple[int, int]:
        """The number of the draft's layers that can be shown to routers, and their width."""
        if self.draft_tap is None or self.draft_on_cpu:
            return self._cpu_draft_states if self.draft_tap is not None else (0, 0)
        return self.draft_tap.n_layer, self.draft_tap.n_embd

    def _context(self, model: Model, **params: Any) -> Context:
        common = {
            "n_batch": self._config.batch,
            "n_ubatch": self._config.ubatch.least,
            "n_threads": self.threads,
            "n_threads_batch": self.prompt_threads,
        }
        # With draft-mtp, the draft's context may belong to the target's own extra layers.
        is_draft = model is not self.target or "ctx_type" in params
        values = context_values(self._config, is_draft=is_draft)
        try:
            context = self._keep(
                Context(model, {**values, **common, **params, **self._config.context_params})
            )
        except InputError as error:
            kind = self._config.cache_type_k_draft if is_draft else self._config.cache_type_k
            if "GGML_ASSERT" not in str(error) or kind in WHOLE_TYPES:
                raise
            raise InputError(
                f"{model.path}: its heads are no multiple of the blocks of a K cache of type {kind}: "
                "give another type"
            ) from None
        if self.pool is not None:
            self.pool.attach(context)
        return context

    @property
    def prompt_threads(self) -> int:
        """The number of CPU threads for prompts."""
        return self._config.threads_batch or self.threads

    @property
    def _shares_cores(self) -> bool:
        return any(device.shares_host_cores for device in self.devices)

    @property
    def _default_threads(self) -> int:
        gpu = self.device is not None and not self._shares_cores
        return default_threads(physical_cores(), gpu=gpu, shares_cores=self._shares_cores)


def _states_of(info: ModelInfo) -> tuple[int, int]:
    """Return the number of a model's layers that compute a token's hidden states, and their width."""
    return info.n_layer - info.n_mtp_layers, info.n_embd
