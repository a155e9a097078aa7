"""The mechanism of spac: devices, experts and llama.cpp's loop (csrc/bindings).

Arrays are numpy arrays, int32 unless stated. Every function may raise the errors of spac.errors, and raises
InputError for arguments that it cannot use.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypedDict

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import Float32Array, Int32Array

__version__: str
cuda_version: str
"""The version of the CUDA toolkit of the build, such as "13.0"; "" without CUDA, or if it is unknown."""
cuda_architectures: str
"""The architectures of the build's kernels, as CMake has them, with commas; "" if they are unknown."""
llama_cpp_python_version: str
"""The version of llama-cpp-python that the library's llama.cpp comes from."""

def llama_decode_address() -> int:
    """Return the address of llama_decode that calls inside the library reach."""

def ggml_version() -> str: ...
def cpu_kernels() -> list[str]:
    """Return the types of weights that this build has kernels for (csrc/kernels)."""

def trusted_cpu_kernels() -> list[str]:
    """Return the types whose kernels are used: their results are ggml's on this machine, bit for bit."""

def cpu_kernels_enabled() -> bool:
    """Return True if the CPU computes with spac's kernels, as it does at first."""

def set_cpu_kernels(on: bool) -> None:
    """Set for the whole process whether the CPU computes with spac's kernels or with ggml's own."""

def set_uneven_cores(on: bool) -> None:
    """Tell that fast and slow cores compute together. It counts before the process's first product alone."""

def time_cpu_kernels(
    types: list[str], threads: int, seconds: float
) -> tuple[dict[str, dict[str, tuple[float, float]]], float]:
    """Measure the ways to compute with weights of these types, in turns, with so many threads at once.

    The ways are "ggml" (llama.cpp's own functions), "256" and "512" (spac's, by the bits of a vector). A way
    is missing if this CPU lacks it or if its results are not ggml's. "dense" has ggml's kernels for dense
    matrices, if their results are the same; its first entry is 0. By type and way, the function returns the
    seconds (medians) that a thread takes for the same weights with one row of input, and with two and eight
    together. The second item is the share of the time for which the threads really ran. It is less than 1
    where other programs had the cores. A type takes about `seconds`. Raise InputError for a type that has no
    kernels.
    """

def cpu_kernels_trial_bytes(type: str) -> int:
    """Return the bytes of weights of this type that a thread multiplies in a time of `time_cpu_kernels`.

    Raise InputError for a type that has no kernels.
    """

def choose_cpu_kernels(type: str, one: str, several: str, dense: bool) -> None:
    """Set the ways to compute for one row of input and for several, for the whole process.

    ggml's way replaces one that is missing. With `dense`, the way for several rows computes dense matrices
    too, where ggml has other kernels with the same results. Raise InputError for unknown names.
    """

def chosen_cpu_kernels(type: str) -> tuple[str, str, bool]:
    """Return the ways for one row of input and for several, and True if the latter computes dense matrices.

    Raise InputError for a type without kernels.
    """

def system_info() -> str:
    """Return llama.cpp's line on the instruction sets and backends that are compiled in."""

# llama.cpp. A model, a vocabulary, a context or an adapter is its address as an integer; 0 means a refusal.
# Functions that load return it, and the library's log tells the reason.

CONTEXT_TYPE_MTP: int
"""The type of a context that drafts with a model's extra (multi-token prediction) layers."""
FLASH_ATTN_AUTO: int
FLASH_ATTN_DISABLED: int
FLASH_ATTN_ENABLED: int
LOAD_MODE_AUTO: int
LOAD_MODE_NONE: int
LOAD_MODE_MMAP: int
LOAD_MODE_MLOCK: int
LOAD_MODE_MMAP_MLOCK: int
LOAD_MODE_DIRECT_IO: int
ROPE_SCALING_UNSPECIFIED: int
ROPE_SCALING_NONE: int
ROPE_SCALING_LINEAR: int
ROPE_SCALING_YARN: int

def log_to(callback: Callable[[int, bytes], object]) -> None:
    """Call `callback` with the level and the text of every line of the library's log, from any thread.

    A Ctrl-C in it is raised again later. Any other exception is reported and dropped.
    """

def load_model(
    path: bytes,
    devices: Sequence[int],
    values: dict[str, Any],
    progress: Callable[[float], bool] | None = None,
) -> int:
    """Load a GGUF on these devices (`device_handle`); without any, on the CPU.

    `values` has fields of llama_model_params; `kv_overrides` is a mapping from names to values, and
    `layer_split` a list with each device's part of the layers, in place of its free memory. `progress`
    gets the loaded share, 0 to 1, and returns False to stop. Its exceptions are raised. Raise InputError for
    unknown fields and for values of another type.
    """

def free_model(model: int) -> None: ...
def model_layers(model: int) -> int: ...
def model_extra_layers(model: int) -> int:
    """Return the number of layers that predict further tokens."""

def model_bytes(model: int) -> int:
    """Return the size of the weights in bytes."""

def model_description(model: int) -> str: ...
def model_has_encoder(model: int) -> bool: ...
def model_is_recurrent(model: int) -> bool: ...
def model_has_window(model: int) -> bool:
    """Return True if some layers see a window of the past and no more."""

def model_vocabulary(model: int) -> int: ...
def n_model_tokens(model: int) -> int:
    """Return the number of tokens of the vocabulary."""

def chat_template(model: int) -> bytes:
    """Return the model's chat template; b"" if it has none."""

def begin_token(model: int) -> int:
    """Return the beginning token; -1 if there is none."""

def adds_begin(model: int) -> bool: ...
def token_text(model: int, token: int) -> bytes: ...
def token_piece(vocabulary: int, token: int, special: bool) -> bytes:
    """Return the bytes of a token. Those of a control token are empty unless `special`."""

def is_end(model: int, token: int) -> bool: ...
def tokenize(model: int, text: bytes, special: bool) -> Int32Array:
    """Return the tokens of `text`, with the beginning token if the model adds one.

    `special` makes control tokens of their text. Raise SpacError if llama.cpp cannot.
    """

def new_context(model: int, values: dict[str, Any]) -> int:
    """Make a context. `values` has fields of llama_context_params. Raise InputError as `load_model` does."""

def free_context(context: int) -> None: ...
def context_size(context: int) -> int:
    """Return the number of tokens that fit into the context."""

def context_threads(context: int) -> int:
    """Return the number of CPU threads of a graph: the larger one of those for a prompt and for a token."""

def batch_tokens(context: int) -> int:
    """Return the largest number of tokens of one batch."""

def graph_tokens(context: int) -> int:
    """Return the largest number of tokens of one graph."""

def load_adapter(model: int, path: bytes) -> int:
    """Load a LoRA adapter, which is freed with its model."""

def apply_adapters(context: int, adapters: Sequence[int], scales: Sequence[float]) -> bool:
    """Make an empty context compute with adapters, and decode a token once. Return False if it fails."""

def rehearse(context: int, n_tokens: int) -> int:
    """Evaluate `n_tokens` tokens and three single ones behind them, and forget all of them.

    Return llama_decode's status, 0 if all went well.
    """

def decode(context: int, tokens: Int32Array | Sequence[int], position: int, logits: bool) -> int:
    """Evaluate tokens of sequence 0, with logits for all or for none. Return llama_decode's status."""

def logits(context: int, n_rows: int) -> Float32Array:
    """Return a copy of the logits of the last batch, [n_rows, n_vocab]."""

def synchronize(context: int) -> None:
    """Wait until the context's device has computed everything."""

def vocab_mismatch(target_model: int, draft_model: int) -> str | None:
    """Return why the draft's tokens have another meaning for the target, or None if they have the same.

    The arguments are the addresses of llama_models.
    """

def graph_bytes(context: int, n_tokens: int) -> dict[str, int]:
    """Return the bytes that compute buffers for graphs of `n_tokens` take of each device, by its name.

    `context` is the address of a llama_context, whose memory and buffers stay as they are. Raise
    OutOfMemoryError if its buffers cannot be allocated again.
    """

def grammar_of_schema(schema: str) -> str:
    """Return the grammar (GBNF) of all texts that fit a JSON schema.

    Raise InputError if there is none, or if it exceeds a limit.
    """

def check_grammar(model: int, text: str) -> None:
    """Raise InputError if a grammar (GBNF) cannot be used with a model, or exceeds a limit."""

def take_grammar_fault() -> str:
    """Return what was wrong with a grammar of llama_cpp's own loop since the last call, "" for nothing.

    It belongs to the calling thread. No exception may cross llama.cpp's C interface.
    """

# Devices

class DeviceMemory:
    """A device's memory, and the part that buffers of this process hold, in bytes.

    All buffers count: weights, contexts, compute buffers, slots and the rest. Memory that a driver keeps for
    itself does not count.
    """

    free: Final[int]
    """The bytes that may still be allocated within the limit."""
    device_free: Final[int]
    """The bytes that are free on the device, whatever the limit."""
    total: Final[int]
    limit: Final[int]
    """The bytes that buffers of this process may take together; 0 means no limit."""
    size: Final[int]
    """The bytes that the device seems to have: the limit if it is less than the total, else the total."""
    used: Final[int]
    peak: Final[int]
    """The largest value of `used` since the limit was set, in bytes."""
    kernels: Final[int]
    """The bytes that pools of the device's kernels take, which `used` does not count."""
    n_device_buffers: Final[int]
    """The number of buffers allocated so far on the device."""
    n_host_buffers: Final[int]
    """The number of buffers allocated so far in host memory that the device copies from."""

class DeviceInfo:
    """A device that experts can be put on."""

    name: Final[str]
    description: Final[str]
    pci: Final[str]
    """The device's address on the PCI bus, as 0000:01:00.0; "" if it is unknown."""
    memory: Final[DeviceMemory]
    """The device's memory at the call of devices()."""
    memory_free: Final[int]
    """The free bytes of `memory`."""
    memory_total: Final[int]
    """The total bytes of `memory`."""
    reads_masks: Final[bool]
    """True if the device's kernels read ids masks and have been tried."""
    shares_host_cores: Final[bool]
    """True if the device computes on the CPU's cores, so that it is no faster than the CPU."""
    shares_host_memory: Final[bool]
    """True if the device's memory is the host's."""
    is_integrated: Final[bool]
    """True if the device is built into a processor."""

def devices() -> list[DeviceInfo]:
    """Return all devices that can be chosen, real ones first.

    The function never raises: a missing driver yields no device.
    """

class ThreadPool:
    """A pool of threads that stay and compute the graphs of contexts on the CPU.

    Without a pool, ggml makes and ends threads for every graph. Contexts that compute in turns share a pool.
    The CPUs of the thread that makes the pool do not change.
    """

    def __init__(self, n_threads: int, poll: int) -> None:
        """Make a pool of so many threads, including the one that decodes.

        `poll` says how long they look for the next graph before they sleep, from 0 (not at all) to 100.
        Raise InputError for other numbers, and OutOfMemoryError.
        """

    def attach(self, context: int) -> None:
        """Make the context at this address compute with the pool; free the context before the pool.

        Raise InputError when the pool is closed.
        """

    def close(self) -> None:
        """End the threads, after all contexts are freed; a second call does nothing."""

def set_placing(cpus: list[int]) -> None:
    """Set the CPUs for the threads of pools that are made from now on.

    Each of them may use any of these CPUs. An empty list leaves the choice to the system. The thread that
    decodes is never bound.
    """

def end_at_second_signal(number: int, after_s: float, has_come: bool = False) -> None:
    """Let a second signal end the process by its default action, `after_s` seconds after the first or more.

    The present handler gets the first one. Setting another handler ends this. With `has_come`, the first one
    comes now.
    """

def device_handle(name: str, split: bool = True) -> int:
    """Return the ggml_backend_dev_t for llama_model_params.devices.

    Without `split`, it is the device itself, on which experts are plain tensors. Raise InputError, which
    names the known devices, for an unknown one.
    """

class SlotLayers:
    """llama_model_params.tensor_buft_overrides that put experts of some layers elsewhere.

    Keep it until the model is loaded.
    """

    def __init__(self) -> None: ...
    def add(self, device: str, layers: Sequence[int]) -> None:
        """Give the experts of these layers to a device. Raise InputError for an unknown one."""
    def keep_experts(self, layers: Sequence[int]) -> None:
        """Keep the experts of these layers in host memory, where the CPU computes them."""
    def keep_output(self) -> None:
        """Keep the output matrix in host memory."""
    address: Final[int]
    """The address of the entries. Adding to them changes it."""

class RemoteDevice:
    """A device of an RPC server. Memory is in bytes, as of when the server was opened."""

    handle: Final[int]
    """The ggml_backend_dev_t for llama_model_params.devices."""
    memory_free: Final[int]
    memory_total: Final[int]

class RemoteServer:
    """The process's connection to an RPC server. Models that use its devices have to be freed before it."""

    def __init__(self, host: str, port: int) -> None:
        """Connect, or share the connection that there is.

        Raise InputError if the server cannot be reached, has another version or is no RPC server. Raise
        DeviceError if a model still uses a connection that is lost.
        """
    address: Final[str]
    devices: Final[list[RemoteDevice]]
    loss: Final[str]
    """The reason why the connection is lost; "" if it is not."""

def set_rpc_timeout(seconds: float) -> None:
    """Set the seconds for which an RPC server may be silent, from the next connection on; 0 for ever."""

class ServedDevice:
    """A device that an RPC server lends. Memory is in bytes."""

    name: Final[str]
    description: Final[str]
    memory_free: Final[int]
    memory_total: Final[int]

class RpcServer:
    """A server of ggml's RPC protocol that lends devices to a client on another machine."""

    def __init__(self, devices: Sequence[str], n_threads: int, cache: str) -> None:
        """Lend the devices of these names, of which "cpu" is one. `cache` is a folder for weights, or ""."""
    devices: Final[list[ServedDevice]]
    def serve(self, fd: int) -> None:
        """Serve the client at the other end of a connected socket until it leaves, and close the socket.

        There is one client at a time. Raise InputError for a message that cannot be used, and DeviceError
        where ggml would have ended the process.
        """

def rpc_version() -> str:
    """Return the version of the RPC protocol."""

def set_memory_limit(name: str, bytes: int) -> None:
    """Set how many bytes buffers of this process may take on a device together; 0 means no limit.

    Existing buffers stay. Raise InputError, which names the known devices, for an unknown one.
    """

def take_memory_refusal() -> tuple[str, int, DeviceMemory] | None:
    """Return the first allocation of device memory that failed on this thread since the last call.

    It has the device, the bytes that were requested, and the memory at that moment. Return None if no
    allocation failed.
    """

def take_kernel_refusal(device: str) -> int:
    """Return the bytes that kernels of a device asked for in vain since the last call; 0 for none.

    Raise InputError if the name is unknown.
    """

def set_default_device(name: str) -> None:
    """Set the device of models that name none; call this before the first model is loaded."""

def default_device() -> str: ...
def set_simulated_device(
    *,
    upload_gb_s: float = 0,
    latency_us: float = 0,
    delay_us: float = 0,
    memory_mb: int = 0,
    fail_uploads: int = 0,
    n_threads: int = 1,
    spin_us: float = 50,
    pin_limit_mb: int = -1,
    kernel_share: float = 0,
    fault: str = "",
    index: int = 0,
) -> None:
    """Set a simulated device's speed and faults, from now on.

    An `index` above 0 makes further devices, "simulated1" and so on, which stay until the process ends.

    `fault` is "no-kernel", "unordered", "no-signal", "slow-queue", "dead" or "" for none
    (csrc/backend/simulated_device/settings.h). Settings that are not given return to their defaults. Raise
    InputError for an unknown fault.
    """

def simulated_device(index: int = 0) -> dict[str, float]:
    """Return a simulated device's settings except the fault, by the names of set_simulated_device()."""

def set_launch_ahead(on: bool | None) -> None: ...
def set_hand_over_in_place(on: bool | None) -> None:
    """Set whether kernels read and write a layer's ids, input and rows in pinned memory, without copies.

    This applies to the hand-off of graphs prepared from now on. None means: on GPUs that support it, and not
    on the simulated device.
    """

def set_gate_timeout(seconds: float | None) -> None:
    """Set how long a thread waits at a stream gate, from the next wait on.

    After this time, the graph fails, and launching ahead is switched off. None means 20 s, and 0 means no
    limit.
    """

def set_trust_device_masks(on: bool | None) -> None:
    """Set whether devices read ids masks themselves, for contexts made from now on.

    Without, the device compacts (token, expert) pairs. None means: devices whose kernels have been tried.
    """

def set_upload_threads(n: int) -> None:
    """Set how many threads bring a streamed prompt's experts from pageable to pinned memory, for uploads.

    This applies to prompts of sessions opened from now on. 0 leaves it to the driver, and -1 measures which
    number is best.
    """

def set_pinning(*, on: bool = True, limit: int | None = None, slice: int = 1 << 30) -> None:
    """Set how the mappings of experts are registered with the device's driver, for models loaded from now on.

    `limit` is the number of bytes for all models of the process together, `slice` that of one registration.
    Settings that are not given return to their defaults.
    """

class AbortGuard:
    """A block in which loading fails where ggml would end the process because of a file or parameters.

    It protects llama_model_load_from_file and llama_init_from_model, on the thread of the block.
    """

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

# Timeline

ACTIVITIES: tuple[str, ...]
"""The activities that spans show; csrc/core/trace.h lists the fields that each fills in."""

class Trace:
    """A recorder of the mechanism's activities as spans of a timeline.

    It is off until it is started. Any thread may use it.
    """

    def __init__(self) -> None: ...
    def start(self, capacity: int = 1 << 20) -> None:
        """Forget all spans, and record at most `capacity` spans between two calls of take() from now on."""
    def stop(self) -> None:
        """Stop recording; the recorded spans stay until they are taken."""
    def take(self) -> npt.NDArray[np.void]:
        """Return the spans since the last call as a structured array, in the order in which they ended.

        The fields are int64 start_ns, end_ns (of time.monotonic_ns) and bytes, and int32 activity, layer,
        expert, pool, count, distinct and ok. A field is -1 where an activity has none.
        """
    on: Final[bool]
    dropped: Final[int]
    """The number of spans since start() that did not fit."""
    def __len__(self) -> int: ...

# Experts

class LayerInfo:
    """One MoE layer; lists of layers have the order in which layers run."""

    name: Final[str]
    """The name of the layer's down projection tensor."""
    n_expert: Final[int]
    n_used: Final[int]
    """The number of experts per token in the last graph; 0 before the first one."""
    expert_bytes: Final[int]
    pool: Final[int]
    """The layer's pool of slots; a device's layers with experts of equal shapes and types share one."""
    device: Final[int]
    """The index of the layer's device in `Experts.devices`."""

class SlotStats:
    """The numbers of slots and of resident experts, and the memory that slots take."""

    n_slots: Final[int]
    n_resident: Final[int]
    bytes: Final[int]
    """The device memory of the slots, in bytes."""

class ExpertDevice:
    """One device's part of a model: the layers that it computes, and their slots.

    Counters are since the model was loaded.
    """

    name: Final[str]
    n_layer: Final[int]
    n_experts: Final[int]
    slots: Final[SlotStats]
    activations: Final[int]
    activations_hit: Final[int]
    uploads: Final[int]
    upload_bytes: Final[int]
    upload_failures: Final[int]
    upload_ns: Final[int]
    evictions: Final[int]

class Experts:
    """The experts of one loaded model, which has L layers and N experts in the largest of them.

    Any thread may call any method.
    """

    n_layer: Final[int]
    """The number of layers, L; 0 before the model's first context exists."""
    n_expert: Final[int]
    """The number of experts in the largest layer, N."""
    layers: Final[list[LayerInfo]]
    devices: Final[list[ExpertDevice]]
    """The devices that hold layers, in the order in which these run."""
    def attach_slots(self, n_slots: int, margin_bytes: int | Sequence[int] = 0) -> None:
        """Allocate empty slots in place of the ones before; raise OutOfMemoryError.

        `devices` share them in proportion to the experts of their layers. One that has no room for its part
        beside its margin leaves the rest to the others. A margin holds for every device, or each has one.
        """
    def slots_that_fit(self, margin_bytes: int | Sequence[int] = 0) -> int:
        """Return the number of slots that fit beside the margins, on all devices together."""
    slots: Final[SlotStats]
    pool_slots: Final[list[int]]
    host_memory: Final[str]
    """The kind of host memory that holds the experts.

    It is "pinned", "pinned mapping", "partly pinned" (a part of the file's mapping is registered, and the
    other experts are staged), "staged" (copies pass a pinned ring), "pageable" or "paged" (memory cannot
    hold all experts, so they are read from the file as they are needed).
    """
    host_bytes: Final[HostBytes]
    """The experts' bytes that the device's driver has pinned, and the others.

    They are known when the layers are, and are 0 after the model's end.
    """
    def submit(self, priority: Int32Array, threshold: Int32Array) -> None:
        """Set the plan: priority int32[L, N] and threshold int32[L], in C order; both are copied."""
    def settle(self, timeout_s: float) -> bool:
        """Wait until no further wanted expert can be loaded; return False when this takes longer."""
    def residency(self) -> Int32Array:
        """Return a copy of the slot of every expert in its pool, -1 when not resident; int32[L, N]."""
    def attach_draft_copies(self, type: str, n_threads: int) -> None:
        """Make low-bit copies of all experts in device memory, of the type with this name, as "q4_0".

        Raise InputError for a type that does not fit, and OutOfMemoryError if the device has no room.
        """
    def draft_copy_bytes(self, type: str) -> int:
        """Return the device memory that such copies take."""
    draft_bytes: Final[int]
    """The device memory of the copies; 0 without them."""
    def set_counting(self, counting: bool) -> None: ...
    def take_demand(self) -> tuple[Int32Array, int]:
        """Return the activations since the last call, int32[L, N], and the number of graphs they stem from.

        The call zeroes the counts.
        """
    def routes(self) -> Int32Array:
        """Return the experts that routers chose for every token of the last verification or decode.

        The array is a read-only copy, int32 [L, T, U]. T and U are the largest numbers of tokens and of
        experts for each in any layer. Entries are -1 where a layer had fewer: the last layer may compute only
        the tokens whose logits are wanted.
        """
    def take_layer_costs(self) -> npt.NDArray[np.void]:
        """Return the costs of every layer since the last call, a structured array [L]; see Step.layer_costs.

        A loop takes them after each verification.
        """
    def set_step_tokens(self, n_max: int) -> None: ...
    def set_lookahead(self, n_layers: int) -> None:
        """Set how many layers ahead experts are predicted and loaded in a step (backend/experts/experts.h).

        0 switches this off. Raise InputError for a negative number.
        """
    def set_rehearsing(self, on: bool) -> None:
        """Set whether graphs are rehearsals, whose results nobody wants.

        The CPU computes no experts in them, and devices launch the kernels of their part whatever is
        resident.
        """
    def set_early_rows(self, on: bool) -> None:
        """Set whether threads read rows of predicted experts early (backend/experts/experts.h)."""
    def set_miss(self, how: str, most_recent: bool = False) -> None:
        """Set where misses of steps are computed: "cpu" or "load" (backend/experts/experts.h).

        Raise InputError for another word.
        """
    def set_tail_tokens(self, n_tokens: int) -> None:
        """Note the routes of the last `n_tokens` tokens of each graph that does not count, until it is 0.

        `routes` forgets what it had before, and has those of the last such graph then.
        """
    def set_stream_tokens(self, n_min: int) -> None:
        """Set the number of tokens from which a batch uses prefill streaming; 0 means never.

        Batches that count as demand never use it. All experts of the others are copied through the device.
        """
    def set_staged_tokens(self, n_most: int) -> None:
        """Set the largest graphs, in tokens, that have staging in any case; the engine sets it.

        Larger graphs get staging only if they do not use prefill streaming.
        """
    def stream_bytes(self) -> int:
        """Return the bytes of device memory that prefill streaming takes from its first batch on.

        slots_that_fit() leaves room for them.
        """
    trace: Final[Trace]
    stats: Final[dict[str, int]]
    """The counters since the model was loaded, by the names of ExpertStats (experts.h).

    Of several devices, those of each are there too, as "CUDA1.uploads".
    """

class HostBytes:
    """The bytes of experts in host memory."""

    pinned: Final[int]
    """The bytes in memory that the device's driver has pinned."""
    pageable: Final[int]
    """The bytes in other memory."""
    why: Final[str]
    """The reason why a part that could be pinned is not: "off", "limit", "refused", or "" for none."""

class LoadScope:
    """A `with` block that puts the experts of models loaded in it, on this thread, in `experts`.

    `paged` means that memory cannot hold the experts. Then the file is read only where it is needed, and
    nothing is pinned.
    """

    def __init__(self, paged: bool = False) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    experts: Final[Experts | None]

class Tap:
    """A tap of the hidden states that enter every FFN of the context made in its `with` block.

    It shows the states of each token that the context decodes alone to routers of a target, in the context's
    own graph. The thread that uses the context uses the tap too, between its decodes.
    """

    def __init__(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    n_layer: Final[int]
    """The number of FFNs in the context's graphs, D; they are numbered in the order in which they run.

    It is 0 before the context is made, and if its graphs do not run on a SPAC device in one piece.
    """
    n_embd: Final[int]
    """The width of the hidden states that enter the FFNs, E."""
    callback: Final[tuple[int, int]]
    """llama.cpp's `cb_eval` and `cb_eval_user_data` for a context on the CPU. The tap must outlive it."""
    def ask(self, target: Experts, inputs: list[int], n_chosen: list[int]) -> None:
        """Ask routers of the target's first MoE layers from the next token on; none, as at first, is free.

        inputs: the draft's FFN whose input each router gets, rising. n_chosen: how many experts each names.
        Raise InputError for a router that cannot be asked, and OutOfMemoryError for lack of memory.
        """
    def answers(self) -> Int32Array | None:
        """Return the choices for the token decoded last, int32 [n, U], best first, once its logits are read.

        Entries are -1 where a layer names fewer. Return None if the token was not shown.
        """
    def next(self, token: int, n: int) -> tuple[int, Int32Array] | None:
        """Wait for more: a token after `token`, or more than n layers of it, on any thread.

        Return its number, and the choices of the layers that are known, int32 [n, U]. Return None after
        `stop`.
        """
    def stop(self) -> None:
        """End all waits until the next `ask`, on any thread."""
    n_shown: Final[int]
    """The number of tokens that were shown so far; they are numbered from 1."""

# The loop

class Step:
    """The result of one step."""

    tokens: Final[Int32Array]
    """The accepted draft tokens, then the target's own token; int32[n], read-only."""
    n_drafted: Final[int]
    """The number of draft tokens that were verified."""
    n_accepted: Final[int]
    n_verified: Final[int]
    """The number of tokens in the verification batch: of one sequence, n_drafted + 1."""
    n_steps: Final[int]
    """1, or 0 if this was no verification."""
    demand: Final[Int32Array]
    """The activations of every expert in this verification, int32[L, N]; [0, 0] without experts.

    The array is a read-only view on the loop's one buffer. The next step overwrites it.
    """
    layer_costs: Final[npt.NDArray[np.void]]
    """The times and counts of every layer in this verification: a structured array, [L] or [0].

    The fields are int64 host_ns (experts on the CPU), wait_ns (waiting for ids and input), int32
    host_activations, host_distinct, device_activations, device_distinct and loaded_distinct. The array is
    a read-only view that the next step overwrites.
    """
    upload_bytes: Final[int]
    """The bytes of the experts copied into slots since the verification of the step before."""
    upload_ns: Final[int]
    """The time that these copies took, in nanoseconds."""
    draft_ns: Final[int]
    verify_ns: Final[int]
    sample_ns: Final[int]

class DraftToken:
    """The event "draft_token": a draft token is known."""

    token: Final[int]
    index: Final[int]
    """The token's index in this draft, from 0.

    If several slots draft in a step, it counts the tokens that their drafts have evaluated before. Where
    a slot's draft ends at a token that it refuses, `token` is -1.
    """
    routes: Final[Int32Array | None]
    """The choices of the draft's routers for the first T tokens that the target will verify.

    These are the token before the draft, then the drafted ones except this, the last. The array is a
    copy, int32[L, T, U], with -1 where a layer has fewer. It is None unless routes are kept.
    """

class VerifyLayer:
    """The event "verify_layer": an MoE layer of the running verification has been computed.

    While this event has a callback, the host waits for the ids of whole layers too.
    """

    layer: Final[int]
    demand: Final[Int32Array]
    """A copy of the activations of every expert in the verification; int32[n_expert of the layer]."""

class DraftEnd:
    """The event "draft_end": the draft, which may be empty, is about to be verified."""

    tokens: Final[Int32Array]
    """A copy of the drafted tokens; int32[n_drafted]."""
    draft_ns: Final[int]
    routes: Final[Int32Array | None]
    """The routes of the last draft token.

    If the draft ended at a token that it refused, they cover all tokens: T = n_drafted + 1.
    """

class ChatPrompt:
    """A prompt made of messages, and the reader of its answer.

    `ChatTemplates.apply` makes it. It needs no model.
    """

    text: Final[str]
    """The text of the prompt, without a beginning token that tokenizing adds."""
    stops: Final[list[str]]
    """The texts that end the answer, beside the model's end tokens."""
    preserved_tokens: Final[list[int]]
    """The control tokens that belong to the text for `read`, ascending; other control tokens do not."""
    thinks: Final[bool]
    """True if the model may reason before it answers."""
    calls: Final[bool]
    """True if the answer may call tools."""
    goes_on: Final[bool]
    """True if the answer continues the last message; `read` then returns both as one."""
    def read(self, answer: str, *, is_partial: bool) -> str:
        """Return the message of an answer as JSON in OpenAI's format.

        It has `content`, `reasoning_content` and `tool_calls`. `is_partial` means that the answer goes on.
        Raise InputError for an answer that does not follow the format.
        """

class ChatTemplates:
    """A model's chat templates; the model has to outlive the calls of `apply`."""

    def __init__(self, model: int, source: str = "") -> None:
        """Read the templates of the llama_model at address `model`; a Jinja `source` replaces them.

        Raise InputError if there is no template, or if it cannot be read.
        """
    capabilities: Final[dict[str, bool]]
    """The features that the template supports, such as `supports_system_role`, by llama.cpp's names."""
    can_stop_thinking: Final[bool]
    """True if `enable_thinking` makes a difference."""
    def apply(self, request: str) -> ChatPrompt:
        """Return the prompt for `request`; raise InputError for an invalid request.

        `request` is JSON text with `messages`. It may have `tools`, `tool_choice`, `parallel_tool_calls`,
        `json_schema`, `enable_thinking` and `chat_template_kwargs`. With `continue_final_message`, the answer
        continues the last message (`ChatPrompt.goes_on`).
        """

class ImagePrompt:
    """A prompt with images."""

    tokens: Final[Int32Array]
    """The tokens [n] of text and images. An image's are equal negative numbers, one for each place."""
    n_images: Final[int]
    text: Final[bytes]
    """The text that was read, in which the projector's marker stands for each image."""
    files: Final[list[bytes]]
    """The images' files."""

class Projector:
    """The projector of a model that sees (mtmd): it makes embeddings of images."""

    def __init__(
        self,
        path: bytes,
        model: int,
        device: str = "",
        *,
        marker: str,
        n_threads: int = 4,
        image_min_tokens: int = -1,
        image_max_tokens: int = -1,
    ) -> None:
        """Load a projector's file for a model, which is given as the address of a llama_model.

        Free the projector before the model. It computes on the device of this name, or on the CPU without
        one. The limits of an image's tokens apply to models that choose an image's size; -1 means the file's.
        `marker` stands for an image in prompts.
        Raise InputError if the file is no projector, another model's, or one for sound.
        """
    marker: Final[str]
    """The text that stands for an image in the text of a prompt."""
    def tokenize(self, text: bytes, images: Sequence[bytes]) -> ImagePrompt:
        """Return the prompt of a text in which the marker stands for each image.

        `images` are files in memory. Any thread may call this. Raise InputError if an image cannot be
        decoded, and for another number of markers.
        """

class _Sampling(TypedDict, total=False):
    """The sampling parameters of a loop or of a completion, llama.cpp's, with their defaults.

    temp <= 0 is greedy, and seed None is a random seed.
    """

    seed: int | None  # None
    temp: float  # 0.8
    top_k: int  # 40
    top_p: float  # 0.95
    min_p: float  # 0.05
    typ_p: float  # 1.0
    top_n_sigma: float  # -1.0
    xtc_probability: float  # 0.0
    xtc_threshold: float  # 0.1
    dynatemp_range: float  # 0.0
    dynatemp_exponent: float  # 1.0
    repeat_last_n: int  # 64
    repeat_penalty: float  # 1.0
    frequency_penalty: float  # 0.0
    presence_penalty: float  # 0.0
    dry_multiplier: float  # 0.0
    dry_base: float  # 1.75
    dry_allowed_length: int  # 2
    dry_penalty_last_n: int  # 64
    mirostat: int  # 0
    mirostat_lr: float  # 0.1
    mirostat_ent: float  # 5.0
    mirostat_penalizes: bool  # False
    grammar: str  # ""
    logit_bias: Mapping[int, float]
    ignore_eos: bool  # False
    samplers: Sequence[str] | None  # None
    chat: ChatPrompt | None  # None
    reasoning_budget: int  # -1

class _Drafts(TypedDict, total=False):
    """The other parameters of a loop, with their defaults.

    `draft_types` are llama.cpp's names, or "self"; without any, the loop decodes without drafts.
    `prompt_cache_bytes` of host memory hold sequences that are left for others. `n_checkpoints` apply to a
    memory that cannot go back: a recurrent one, or one with a window. Within prompts, they are at least
    `checkpoint_step` tokens apart.
    """

    draft_types: Sequence[str]  # ()
    draft_max: int  # 16
    draft_min: int  # 0
    p_min: float  # 0.0
    prompt_cache_bytes: int  # 0
    n_checkpoints: int  # 0
    checkpoint_step: int  # 8192

class SequenceStep:
    """The result of one step for one of its sequences."""

    id: Final[int]
    tokens: Final[Int32Array]
    """The accepted draft tokens, then the target's own; int32[n]."""
    n_drafted: Final[int]
    """The number of draft tokens that were verified."""
    n_accepted: Final[int]
    n_steps: Final[int]
    """One, or 0 if the tokens came from a batch with prompts, which is no verification."""
    draft_ns: Final[int]
    """The time of the batch's draft."""
    verify_ns: Final[int]
    """The time of the batch's verification."""
    sample_ns: Final[int]
    """The time from the verification until the sequence had sampled."""
    seconds: Final[float]
    """The seconds since the sequence's step before; 0 for its first one."""
    reason: Final[str]
    """The reason to stop: "stop" (the last token ends the text), or ""."""
    probabilities: Final[tuple[Float32Array, Int32Array, Float32Array] | None]
    """The target's log probabilities of the T `tokens` and of the best alternatives, or None.

    The first array has the natural logarithms for the tokens, float32[T]. The others have the N most
    probable tokens at their places, best first, int32[T, N], and their logarithms, float32[T, N].
    Probabilities are those before any sampler, over the whole vocabulary.
    """
    scored: Final[tuple[Float32Array, Int32Array, Float32Array] | None]
    """The log probabilities of the last of `ServerLoop.generate(scored=…)`, as `probabilities`, or None.

    Only the first step has them.
    """
    experts: Final[dict[str, int]]
    """The counts of the window's own experts, by the names of `Experts.stats`; distinct ones by layer."""

class ParallelStep:
    """The result of one step of several sequences."""

    batch: Final[Step]
    """The tokens, counts, times and the demand of all sequences together."""
    sequences: Final[list[SequenceStep]]
    """The results of those that had a turn, the oldest first."""
    n_prompt: Final[int]
    """The number of prompt tokens that were evaluated."""
    prefill_ns: Final[int]
    verified: Final[bool]
    """True if `batch` is of a verification."""

class LoopResponse:
    """An answer of llama.cpp's server, or the beginning of a stream.

    One thread at a time makes it; `cancel` and `close` may be called by others.
    """

    def run(self) -> None:
        """Answer the request. Return with the whole answer, or when a stream begins."""
    status: Final[int]
    """The HTTP status."""
    content_type: Final[str]
    """The body's type."""
    body: Final[bytes]
    """The whole body; empty for a stream."""
    headers: Final[dict[str, str]]
    """Further headers of the answer."""
    is_stream: Final[bool]
    """True if `next` returns the body part by part."""
    def next(self) -> bytes | None:
        """Return the next part of a stream, or None at its end."""
    def cancel(self) -> None:
        """Let `run` and `next` return soon."""
    def close(self) -> None:
        """Cancel, wait for a call that runs, and free what the answer holds of the server."""

class TextNews:
    """Holds what has become of a text since its reader asked."""

    steps: Final[list[SequenceStep]]
    """Its steps, the oldest first."""
    progress: Final[list[tuple[int, int]]]
    """The tokens of its prompt that were done after each batch, and those of them from the memory."""
    is_over: Final[bool]
    """True if the loop has ended the text by itself."""
    is_stopped: Final[bool]
    """True if the text was cancelled, or the loop is closed."""

class LoopText:
    """A text that the loop makes for this process. One thread at a time reads it."""

    number: Final[int]
    """The number that `text_begin` receives, at least 1."""
    def begin(self) -> None:
        """Ask the loop for the text, once. Raise InputError for a prompt that is refused."""
    def next(self) -> TextNews:
        """Wait for news, and return them.

        Raise what has ended the text when all news are read: InputError for what is refused, DeviceError or
        OutOfMemoryError for a decode that failed, and SpacError.
        """
    def cancel(self) -> None:
        """End the text. `begin` and `next` return soon. Any thread may call this."""

class LoopLock:
    """A lock that a ServerLoop holds while it drafts, decodes and calls `verify_end` and `step_end`.

    Threads that wait for it go before the loop.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
    is_mine: Final[bool]
    """True if this thread holds it."""

class ServerLoop:
    """llama.cpp's server_context on loaded models: its slots, its speculative loop and its handlers."""

    routes: ClassVar[list[str]]
    """The names of the handlers."""
    def __init__(
        self,
        path: str,
        name: str,
        target_ctx: int,
        draft_ctx: int | None = None,
        experts: Experts | None = None,
        *,
        trace: Trace,
        draft_experts: Experts | None = None,
        lock: LoopLock | None = None,
        owner: object = None,
        chat_template: str = "",
        slot_folder: str = "",
        projector_file: str = "",
        projector: Projector | None = None,
        adapters: Sequence[tuple[str, int, float]] = (),
        reasons: bool = True,
        reasoning_budget: int = -1,
        prefills: bool = True,
        template_variables: Mapping[str, str] = {},
        aliases: Sequence[str] = (),
        reasoning_format: str = "deepseek",
        reasoning_message: str = "",
        parses: bool = True,
        shows_slots: bool = True,
        is_verbose: bool = False,
        embeds: bool = False,
        n_slots: int = 1,
        **keywords: Any,
    ) -> None:
        """Start the loop on a thread of its own; `keywords` are those of `_Drafts` and `_Sampling`.

        The contexts belong to the loop until it is closed; `owner` is kept alive until then. Contexts are
        addresses of llama_contexts.
        The projector has `media_marker()`. An adapter is a file, the address of the loaded one, and a scale.
        With `embeds`, the target's context has a pooling. The sampling holds where a request says nothing.
        Raise InputError if llama.cpp refuses models or options.
        """
    @staticmethod
    def media_marker() -> str:
        """Return the text that stands for an image in prompts. It is different in every process."""
    def begin(
        self, route: str, body: bytes, params: Mapping[str, str] = {}, headers: Mapping[str, str] = {}
    ) -> LoopResponse:
        """Return the answer of a request, which `LoopResponse.run` makes. Any thread may call this.

        The route "forget" waits until no slot works, and forgets what the slots hold. The caller may use the
        contexts from then on, until the next request.

        Raise InputError for an unknown route, and after `close`.
        """
    def on(self, event: str, callback: Callable[..., object] | None) -> None:
        """Set the callback of an event, before the first request or between two; None removes it.

        "draft_token" (DraftToken) and "draft_end" (DraftEnd) tell of drafts, "verify_layer" (VerifyLayer) of
        a running verification, and "verify_end" (Step) of a finished one. The loop asks "draft_length" with
        the number of slots that draft and the most tokens, and takes the result as the step's draft length.
        "step_end" (ParallelStep, seconds) comes after every step. The loop holds its lock meanwhile.
        "text_begin" gets the number of a request before its prompt is read; what it raises refuses the
        request.

        "prompt_graph" comes before each chunk of a prompt. The callback gets the number of tokens to
        evaluate, and 0. It returns the tokens of the next graph, at most n_batch. If there is no memory for
        this graph, it is called again with its tokens in place of 0, and a smaller one is tried. The graphs
        of the context's n_ubatch are the last resort. "prompt_tail" comes when a prompt was evaluated.
        "memory_full" comes if a device has no memory for a decode, which is repeated if the result is true.
        """
    def generate(
        self,
        tokens: Int32Array,
        *,
        images: ImagePrompt | None = None,
        limit: int = -1,
        n_unseen: int = 0,
        n_top: int = -1,
        scored: Sequence[int] = (),
        **sampling: Any,
    ) -> LoopText:
        """Return a text behind a prompt of int32 tokens [n], or behind `images`. Any thread may call this.

        `limit` is the most tokens, -1 for any number. `sampling` are those of `_Sampling`. Penalties do not
        look back on the first `n_unseen` tokens. With `n_top` from 0, steps have probabilities. `scored` are
        tokens whose probabilities the first step has, by the rows of as many tokens at the end of the prompt.
        Rows before the prompt's last batch are left out. Raise InputError for invalid parameters, and after
        `close`.
        """

    def keep_draft_routes(self, keeps: bool) -> None:
        """Set whether draft events have `routes`; those of several slots stand behind each other.

        Only the draft types "draft-simple", with `draft_experts`, and "self" have them.
        """
    def close(self) -> None:
        """Close all answers, then end the loop. A second call does nothing."""

# The learned scheduler's step

class Logistic:
    """The step of the learned scheduler (csrc/core/logistic.h); it changes arrays in place."""

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        rate: float,
        kept: tuple[float, float, float],
        squares_kept: float,
        least: float,
        most: float,
        tables: tuple[float, float, float, float],
    ) -> None:
        """Keep the arrays that the steps use.

        `arrays` has float64 [12] weights, squares; float64 [11, L, N] features; float64 [L, N] probability,
        popularity; float64 [1] popularity_steps; uint8 [L, N] exists; int32 [L] pool; int32 [P] pool_slots,
        without the slots of whole layers; uint8 [L] whole; int32 [S] source; float32 [S, N, L, N] table;
        float32 [S, N] seen; uint8 [S, N] marked. `kept` has the factors by which a token decays the features
        recent, near and far. `tables` has the part of the tables' counts that a step leaves, K, the steps of
        the first popularity and ε (python/spac/scheduler/logistic.py).
        """
    def step(
        self,
        demand: Int32Array,
        slot_of: Int32Array,
        routes: Int32Array | None,
        n_verified: int,
        n_rejected: int,
        margin: float,
        hold: float,
        /,
    ) -> tuple[Int32Array, Int32Array]:
        """Return priority int32[L, N] and threshold int32[L]; `routes` is int32[L, T, U], padded with -1."""

# The slot table without a device

class SlotTable:
    """The table of experts and their slots, without a device; an expert is (layer, expert)."""

    def __init__(self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int]) -> None:
        """Make an empty table; `layers` has (n_expert, pool) in the order in which layers run."""
    n_held: Final[int]
    def n_free(self, pool: int) -> int: ...
    def slot_of(self, layer: int, expert: int) -> int: ...
    def acquire(self, layer: int, expert: int) -> int: ...
    def evict(self, layer: int, expert: int) -> int: ...
    def release(self, pool: int, slot: int) -> None: ...
    def toward(
        self, priority: Int32Array, threshold: Int32Array, cursor: int
    ) -> list[tuple[str, tuple[int, int], tuple[int, int] | None]]:
        """Return the steps toward a plan: ("use_free" | "wait" | "use_evicted", load, evicted or None)."""
    def check_integrity(self) -> None:
        """Raise InternalError if the table contradicts itself."""

class Mask:
    """One version of a layer's ids mask, which lives as long as this object."""

    version: Final[int]
    slot_of: Final[list[int]]

class Residency:
    """The slot table, masks and plan, driven step by step by one thread (core/residency.h)."""

    def __init__(self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int]) -> None: ...
    def submit(self, priority: Int32Array, threshold: Int32Array) -> None: ...
    def begin(self, cursor: int, max_loads: int, max_evictions: int) -> list[tuple[int, int, int, int]]:
        """Return a batch of (layer, expert, pool, slot) to copy now; finish() ends the oldest batch."""
    def finish(self, copied: bool) -> None: ...
    def begin_misses(
        self,
        layer: int,
        missing: Sequence[int],
        used: Sequence[int],
        cursor: int,
        most_recent: bool,
    ) -> tuple[list[tuple[int, int, int, int]], Mask]:
        """Return the loads for an execution's misses and its mask; finish_misses() ends the oldest ones."""
    def finish_misses(self) -> None: ...
    def foresee(self, layer: int, experts: Sequence[int]) -> None: ...
    def note_used(self, layer: int, experts: Sequence[int]) -> None: ...
    def mask(self, layer: int) -> Mask: ...
    def slot_of(self, layer: int, expert: int) -> int: ...
    settled: Final[bool]
    def check_integrity(self) -> None: ...

def share_out(n_slots: int, layers: Sequence[tuple[int, int]], n_pool: int) -> list[int]:
    """Return the number of slots of every pool, in proportion to its experts."""

def share_by_room(n_slots: int, experts: Sequence[int], room: Sequence[int]) -> list[int]:
    """Return the slots of every device, in proportion to its experts.

    A device gets no more than it has room for, and the others get the rest. The sum is less than `n_slots` if
    there is no room for all.
    """

def slots_per_tensor(blocks_per_slot: int) -> int:
    """Return how many slots of so many blocks one stacked tensor may have.

    For a type without blocks, the elements count.
    """

def most_slots(limits: Sequence[int], layers: Sequence[tuple[int, int]]) -> int:
    """Return the most slots whose shares (`share_out`, with its `layers`) fit every pool's limit."""

def copy_runs(slot_of: Sequence[int], expert_bytes: int, copy_bytes: int) -> list[tuple[int, int, int]]:
    """Return the copies that bring a layer's experts together: (first expert, number of experts, slot or -1).

    Resident experts are copied from their slots, and the others over the link (-1). Resident experts between
    others come over the link too where that is no slower. A copy of its own takes as long as `copy_bytes`
    over the link.
    """

def pin_slices(
    mapping: tuple[int, int], weights: Sequence[tuple[int, int]], page: int, slice: int, most: int
) -> list[tuple[int, int]]:
    """Return (begin, end) of the slices in which a mapping is registered.

    `weights` are sorted and disjoint. The slices are whole pages in the mapping, about `slice` bytes each and
    at most `most` bytes together. All borders lie in weights.
    """

def pinned_slices(pinned: Sequence[tuple[int, int]], begin: int, bytes: int) -> list[tuple[int, int, bool]]:
    """Return (offset, bytes, is pinned) of the parts of a copy's source; no part crosses a border."""
