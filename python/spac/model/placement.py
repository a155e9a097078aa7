"""The plan of a pair: the devices, layers and threads that its models get, made before one is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spac import _core, env
from spac.config import EngineConfig
from spac.config.engine import AUTO_PARALLEL, DEFAULT_CONTEXT
from spac.errors import OutOfMemoryError, SpacError
from spac.machine import nvidia
from spac.machine.cpu import missing_features, physical_cores, threads_advice
from spac.machine.device_memory import simulated_index, size
from spac.machine.topology import numa_advice
from spac.model import kernels
from spac.model.devices import (
    choose_devices,
    current,
    devices_of,
    room_on,
    set_switches,
    usual_threads,
    without_kernels,
)
from spac.model.gguf.check import check_model
from spac.model.gguf.info import ModelInfo
from spac.model.paging import is_paged
from spac.model.params import LOAD_MODES
from spac.model.pinning import set_pinning
from spac.model.remote import RemoteLayers
from spac.model.slot_layers import SlotLayers
from spac.model.thread_pool import place
from spac.model.whole import all_fit


class Placement:
    """Where the models of a configuration go, and what computes them. It loads nothing.

    It connects to RPC servers, sets memory limits and the library's switches, and measures the CPU's kernels.
    """

    devices: tuple[_core.DeviceInfo, ...] = ()
    """The devices that share the target's layers; none on the CPU alone."""
    device: _core.DeviceInfo | None = None
    """The main device, which has the draft and the projector too; None on the CPU alone."""
    remote: RemoteLayers | None = None
    """The layers on RPC servers; None without `--rpc`."""
    slot_layers: SlotLayers | None = None
    """The layers whose experts have slots on other devices than the main one; None without such devices."""
    paged = False
    """True if the target's experts stay in the file and are read when they are needed."""
    whole = False
    """True if the models run without the split because all experts fit on the devices."""

    def __init__(self, config: EngineConfig, info: ModelInfo, *, device: bool = True) -> None:
        """Choose the devices, the threads and the kernels for the target that `info` describes.

        Without `device`, the target's owner decides where it is, and no device is used. Raise InputError for
        a draft's file, a device or a server that cannot be used.
        """
        self.config, self.info = config, info
        self.draft: ModelInfo | None = None
        """The facts of the draft's header; None without a draft model."""
        self.notes: list[str] = []
        """Notes for the user about how the models run, one line each."""
        if config.draft and any(name.startswith("draft-") for name in config.draft_types):
            self.draft = check_model(Path(config.draft), "draft", config.override_kv)
            if self.draft.file_size > info.file_size:
                names = f"the draft {self.draft.path.name} is larger than the target {info.path.name}"
                self.notes.append(f"{names}: swap them if that is a mistake")
        if device:
            self._choose_devices()
        self.threads: int = config.threads or self._default_threads
        """The number of CPU threads that compute a token."""
        types = {*info.types, *(self.draft.types if self.draft is not None else ())}
        kernels.choose(types, self.threads, self.notes)
        self._note_device()
        if config.rpc:
            self.remote = RemoteLayers(config, info, self.device)
            if self.device is not None:
                self._note_unused_devices(self.device, "--rpc")
        self._pages = is_paged(config, self.rest, self.device)
        self._n_notes = len(self.notes)

    @contextmanager
    def attempt(self, config: EngineConfig) -> Iterator[None]:
        """Plan for this configuration, in place of the last one, while the block loads the models.

        This decides if they run without the split, if experts stay in the file, and which layers have slots
        on other devices. Raise OutOfMemoryError if models without the split leave less than the margin of a
        device. Such errors of the block tell in `whole` if the split was left out.
        """
        del self.notes[self._n_notes :]
        self.config = config
        unsplit = config.cpu_expert_layers is not None and bool(self.devices)
        fits = not unsplit and all_fit(config, self.info, self.draft, self.devices)
        self.whole = unsplit or (fits and not config.keeps_split)
        self.paged = self._pages and not self.whole
        how = config.keeps_split or "llama.cpp computes the model there, without the split"
        self.notes += [f"all experts fit on {self.device_names}: {how}"] if fits else []
        self.slot_layers = None
        if self.device is not None and config.slot_devices and self.info.is_moe:
            others = [device for device in self.devices if device.name != self.device.name]
            there = None if self.draft_on_cpu else self.draft
            self.slot_layers = SlotLayers(config, self.info, self.device, others, there)
        try:
            yield
            self.refresh_devices()
            for device in self.devices if self.whole else ():
                if not room_on(device)[1]:
                    raise OutOfMemoryError(f"too little of {device.name} is left to the driver's libraries")
        except OutOfMemoryError as error:
            error.whole = self.whole
            raise

    def close(self) -> None:
        """Close the connections to servers. The models must be freed before."""
        if self.remote is not None:
            self.remote.close()

    def explained(self, error: SpacError) -> SpacError:
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

    # ---- devices

    def _choose_devices(self) -> None:
        self.devices, self.device = devices_of(self.config)
        main = self.device
        if main is None or not self.config.slot_devices:
            return
        if self.info.is_moe:
            self._note_unused_devices(main, "--slot-devices")
            return
        self.notes.append(f"--slot-devices: not used, for {self.info.path.name} has no experts")
        self.devices = (main,)

    def _note_unused_devices(self, main: _core.DeviceInfo, option: str) -> None:
        """Add a note if an option lets the layers be on one device, and "auto" would have taken several."""
        slots = {name.lower() for name in self.config.slot_devices or ()}
        found = [each for each in choose_devices(self.config.device) if each.name.lower() not in slots]
        if self.config.split_mode != "none" and len(found) > 1:
            use = "is used for layers" if slots else "is used"
            self.notes.append(f"{option}: of this machine's devices, {main.name} alone {use}")

    def _note_device(self) -> None:
        device = self.device
        self.notes += set_switches(self.devices)
        set_pinning()
        by_default = self.config.device.lower() == "auto"
        if by_default and not env.DEVICE.get():
            self.notes += without_kernels(_core.devices())
        if device is None and by_default and self.info.is_moe and not env.DEVICE.get():
            why = nvidia.too_old(_core.cuda_version) or "see `spac doctor`"
            self.notes.append(f"no GPU found ({why}): everything runs on the CPU")
        if device is None and not self.config.rpc and (unused := self.config.unused_on_cpu):
            self.notes.append(unused)
        if by_default and device is not None and simulated_index(device.name) is not None:
            self.notes.append(
                "no GPU found (see `spac doctor`): a simulated device on the CPU shows the split; "
                "--device cpu is faster"
            )
        self._limit_memory()
        self.notes += missing_features(_core.system_info())
        cpus = place(max(self.threads, self.prompt_threads))
        advice = (threads_advice(self.threads, physical_cores(), self._default_threads), numa_advice(cpus))
        self.notes += [line for line in advice if line is not None]

    def _limit_memory(self) -> None:
        """Set this configuration's memory limit on each device, which replaces an earlier one."""
        limit = self.config.vram_limit
        for device in self.devices:
            total = device.memory.total
            n_bytes = 0 if limit is None else limit.of(total)
            _core.set_memory_limit(device.name, n_bytes)
            if n_bytes > total:
                self.notes.append(f"--vram-limit {size(n_bytes)}: {device.name} has {size(total)}")
        self.refresh_devices()

    def refresh_devices(self) -> None:
        """Read the devices' memory anew."""
        self.devices = tuple(current(device) for device in self.devices)
        self.device = current(self.device) if self.device is not None else None

    @property
    def device_names(self) -> str:
        """The devices' names, with commas between them; "cpu" without a device."""
        return ",".join(device.name for device in self.devices) or "cpu"

    @property
    def draft_on_cpu(self) -> bool:
        """True if no layer of the draft is on the device."""
        return self.device is None or self.config.gpu_layers_draft.count == 0

    @property
    def shares_cores(self) -> bool:
        """True if a device computes on the CPU's cores."""
        return any(device.shares_host_cores for device in self.devices)

    @property
    def _default_threads(self) -> int:
        return usual_threads(self.devices)

    @property
    def prompt_threads(self) -> int:
        """The number of CPU threads for prompts."""
        return self.config.threads_batch or self.threads

    # ---- layers

    @property
    def rest(self) -> ModelInfo:
        """The facts of the part of the target that stays on this machine."""
        return self.info if self.remote is None else self.remote.rest(self.info)

    @property
    def layers_here(self) -> int:
        """The number of the target's layers that are on this machine."""
        return self.info.n_layer - (0 if self.remote is None else self.remote.n_layers)

    @property
    def layers_on_device(self) -> int:
        """The number of the target's layers whose dense parts are on a device."""
        wanted = self.config.gpu_layers.count
        if self.device is None:
            return 0
        n_layer = self.layers_here
        return n_layer if wanted is None else max(0, min(wanted - 1, n_layer))  # the output counts as one

    @property
    def unsplit(self) -> str:
        """A message for what needs the split of a target that runs without it."""
        remedy = ", for all its experts fit: start with --slots, or with a smaller --vram-limit"
        return f"{self.info.path.name} runs without the split{remedy if self.whole else ''}"

    def note_layers(self) -> None:
        """Add notes about the layers' places."""
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
        self.notes.append(f"--gpu-layers {self.config.gpu_layers}: {where}")

    # ---- what loading gets

    def handles(self, *, is_draft: bool = False) -> tuple[int, ...]:
        """Return the devices of a model, as addresses for llama_model_params.devices.

        Those of RPC servers come first, and then this machine's. A draft has the main device.
        """
        here = self.devices if not is_draft else (self.device,) if self.device is not None else ()
        remote = () if self.remote is None or is_draft else self.remote.handles
        return (*remote, *(_core.device_handle(each.name, split=not self.whole) for each in here))

    def target_fields(self) -> tuple[dict[str, Any], object]:
        """Return fields of llama_model_params that place the target, and an object to keep while it loads.

        `layer_split` is a list with each device's part of the layers.
        """
        config, fields, kept = self.config, dict[str, Any](), None
        if self.paged:
            fields["load_mode"] = LOAD_MODES["mmap"]  # auto does not map on every device
        if self.remote is not None:
            fields |= self.remote.fields(config.gpu_layers.count, has_device=self.device is not None)
        elif len(self.devices) > 1 and config.tensor_split is not None:
            fields["layer_split"] = list(config.tensor_split)
        if self.slot_layers is not None:
            kept = self.slot_layers.entries()
            fields["layer_split"] = [1.0, *(0.0 for _ in self.devices[1:])]
        elif config.cpu_expert_layers is not None and self.whole:
            kept = _core.SlotLayers()
            kept.keep_experts(list(self.info.expert_layers[: config.cpu_expert_layers]))
        if kept is not None:
            fields["tensor_buft_overrides"] = kept.address
        return fields, kept

    # ---- contexts

    def context_size(self) -> int:
        """Return the number of tokens that the contexts should hold."""
        trained = self.info.n_ctx_train
        if self.config.ctx is None:
            return min(DEFAULT_CONTEXT, trained)
        return self.config.ctx or trained

    def n_sequences(self) -> int:
        """Return the number of sequences as far as the configuration and the file's header tell."""
        return self.config.fitting_parallel(self.context_size())

    def note_sequences(self) -> None:
        """Add a note if there are fewer sequences than the configuration asks for."""
        config, n, wanted = self.config, self.n_sequences(), self.config.n_parallel
        why = "--deterministic would give each a part of the context" if config.deterministic else ""
        if n < wanted:
            why = f"--ctx {self.context_size()} and --batch {config.batch}"
        elif 1 <= n < AUTO_PARALLEL and config.parallel == -1 and not why:
            why = "the memory has no place for more"
        if why and config.parallel == -1:
            at_once = "one generation at a time" if n == 1 else f"{n} generations at once"
            self.notes.append(f"{at_once}, for {why} (--parallel)")
