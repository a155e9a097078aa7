"""The mechanism of spac: devices, experts, sessions (csrc/bindings). Arrays are numpy; int32 unless stated.

Every function may raise the errors of spac.errors; InputError for arguments that cannot be used.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Int32Array = npt.NDArray[np.int32]
Float64Array = npt.NDArray[np.float64]

__version__: str
llama_cpp_python_version: str
"""The version of llama-cpp-python that the library's llama.cpp comes from."""

def llama_decode_address() -> int:
    """The address of llama_decode as calls inside the library reach it."""

def ggml_version() -> str: ...
def cpu_kernels() -> list[str]:
    """Types of weights that this build has kernels for (csrc/kernels)."""

def trusted_cpu_kernels() -> list[str]:
    """Those of them that are used: their results are ggml's on this machine, bit for bit."""

def cpu_kernels_enabled() -> bool:
    """Whether the CPU computes with them: at first as SPAC_CPU_KERNELS says, which is read once."""

def set_cpu_kernels(on: bool) -> None:
    """Whether the CPU computes with them, for the whole process; else with ggml's own."""

def time_cpu_kernels(
    types: list[str], threads: int, seconds: float
) -> tuple[dict[str, dict[str, list[float]]], float]:
    """Measures the ways to compute with weights of these types, in turns, with so many threads at once.

    The ways are "ggml" (llama.cpp's own functions), "256" and "512" (spac's, by the bits of a vector); one
    that this CPU lacks or whose results are not ggml's is missing. By type and way it returns the seconds
    (medians) that a thread takes for the same weights with 1 to 8 rows of input. The second item is the
    share of the time for which the threads really ran: less than 1 where other programs had the cores. A type
    takes about `seconds`. Raises InputError for a type that has no kernels.
    """

def choose_cpu_kernels(type: str, ways: list[str]) -> None:
    """Fixes the way to compute for 1 to 8 rows of input, for the whole process; more rows are like 8.

    A way that is missing is ggml's. SPAC_CPU_KERNELS=256 and 512 go before it. Raises InputError for unknown
    names and for another number of ways than 8.
    """

def chosen_cpu_kernels(type: str) -> list[str]:
    """The way to compute for 1 to 8 rows of input. Raises InputError for a type that has no kernels."""

def repackable_cpu_types(types: list[str]) -> list[str]:
    """Return those of the types that llama.cpp has repacked kernels for on this CPU."""

def quantized_cpu_types(types: list[str]) -> list[str]:
    """Return those of the types that `time_repacking` can measure."""

def time_repacking(
    types: list[str], threads: int, seconds: float
) -> tuple[dict[str, dict[str, list[float]]], float]:
    """Measure llama.cpp's CPU backend with plain and with repacked weights of these types, in turns.

    By type and form ("plain", and "repacked" where llama.cpp can repack the type on this CPU) it returns four
    numbers: seconds (medians) for each token and each gigabyte (1e9 bytes) of weights that it is multiplied
    with. They are those of experts for one token, of experts for a prompt of 64 tokens, of dense matrices for
    one token, and of dense matrices for such a prompt. The second item is the share of the time for which the
    threads really ran. A type takes about `seconds`, and the time to make and to repack some 100 MB of
    weights. Raises InputError for a type that is not quantized.
    """

def time_threads(type: str, threads: list[int], seconds: float) -> tuple[list[float], float]:
    """Measure products of one token with experts of this type, for each number of threads in turns.

    The experts come from memory. The first item has the seconds (medians) of each number of threads, for the
    same work. The second item is the smallest share of the time for which the threads really ran: less than 1
    where other programs had the cores. It takes about `seconds`. Raises InputError for a type that is not
    quantized and for fewer than 1 thread.
    """

def system_info() -> str:
    """llama.cpp's line on instruction sets and backends compiled in."""

# Devices

class DeviceMemory:
    """A device's memory in bytes, and what buffers of this process hold of it: weights, contexts, compute
    buffers, slots and the rest, whoever made them. What a driver keeps for itself is not counted."""

    @property
    def free(self) -> int:
        """What may still be allocated, within the limit."""
    @property
    def total(self) -> int: ...
    @property
    def limit(self) -> int:
        """What buffers of this process may take together; 0: no limit."""
    @property
    def size(self) -> int:
        """What the device acts as having: the limit where that is less than the total."""
    @property
    def used(self) -> int: ...
    @property
    def peak(self) -> int:
        """The most of `used` since the limit was set."""
    @property
    def n_device_buffers(self) -> int:
        """Allocated so far, on the device."""
    @property
    def n_host_buffers(self) -> int:
        """Allocated so far, of host memory that the device copies from."""

class DeviceInfo:
    """A device that experts can be put on."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def memory(self) -> DeviceMemory:
        """As of the call of devices()."""
    @property
    def memory_free(self) -> int:
        """Bytes."""
    @property
    def memory_total(self) -> int:
        """Bytes."""
    @property
    def is_stand_in(self) -> bool:
        """Whether it is the CPU playing a GPU."""
    @property
    def reads_masks(self) -> bool:
        """Whether its kernels read ids masks, and have been tried."""

def devices() -> list[DeviceInfo]:
    """All devices that can be chosen, real ones first. Never raises: a missing driver yields no device."""

class ThreadPool:
    """Threads that stay, for the graphs of contexts on the CPU; without, ggml makes and ends them every time.

    Contexts that compute in turns share one. The CPUs of the thread that makes it stay as they are.
    """

    def __init__(self, n_threads: int, poll: int) -> None:
        """Make a pool for so many threads, the one that decodes included.

        `poll` says how long they look for the next graph before they sleep, from 0 (not at all) to 100.
        Raises InputError for other numbers, OutOfMemoryError.
        """

    def attach(self, context: int) -> None:
        """Have the context at this address compute with it; the context must be freed first.

        Raises InputError when the pool is closed.
        """

    def close(self) -> None:
        """End the threads, once all contexts are freed. Calling it again does nothing."""

def set_placing(cpus: list[int], strict: bool) -> None:
    """Set the CPUs that threads of pools run on, for pools made from now on; an empty list leaves it to the
    system. `strict`: each thread has one CPU for itself. The thread that decodes is never bound."""

def device_handle(name: str) -> int:
    """The ggml_backend_dev_t for llama_model_params.devices. Raises InputError naming the known devices."""

def set_memory_limit(name: str, bytes: int) -> None:
    """Buffers of this process on a device may take so many bytes together, 0: as many as there are.

    What is there already stays. Raises InputError naming the known devices.
    """

def take_memory_refusal() -> tuple[str, int, DeviceMemory] | None:
    """The first allocation of device memory that failed on this thread since the last call: the device, the
    bytes asked for, and the memory at that moment."""

def set_default_device(name: str) -> None:
    """What models use that name no device. To be called before the first model is loaded."""

def default_device() -> str: ...
def set_stand_in(
    *,
    upload_gb_s: float = 0,
    latency_us: float = 0,
    delay_us: float = 0,
    memory_mb: int = 0,
    fail_uploads: int = 0,
    n_threads: int = 1,
    spin_us: float = 50,
    pin_limit_mb: int = -1,
) -> None:
    """Sets the stand-in's speed and faults, from now on. What is not given returns to its default."""

def stand_in() -> dict[str, float]:
    """The stand-in's settings, by the names of set_stand_in()."""

def set_launch_ahead(on: bool | None) -> None: ...
def set_hand_over_in_place(on: bool | None) -> None:
    """Sets whether a layer's ids, input and rows pass between device and host in pinned memory that kernels
    read and write themselves, in place of copies; for graphs prepared from now on.

    None: on GPUs that can, not on the simulated device.
    """

def set_gate_timeout(seconds: float | None) -> None:
    """Sets how long a thread waits at a gate before the graph fails and launching ahead is switched off; from
    the next wait on. None: 20 s; 0: for ever."""

def set_trust_device_masks(on: bool | None) -> None: ...
def set_pinning(*, on: bool = True, limit: int | None = None, slice: int = 1 << 30) -> None:
    """How experts' mappings are registered with the device's driver; for models loaded from now on.

    `limit`: bytes of all models of the process together; `slice`: bytes of one registration. What is not
    given returns to its default.
    """

def set_fault(fault: str) -> None:
    """Faults for tests: "" (none), "swap-slots", "drop-join", "early-turn", "early-release", "no-kernel",
    "stuck-gate", "stuck-call", "dead-device"; "compact" is another way, no fault."""

class AbortGuard:
    """In its block, a file or parameters for which ggml would end the process make loading fail instead.

    For llama_model_load_from_file and llama_init_from_model, on the thread of the block.
    """

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

# Where time goes

ACTIVITIES: tuple[str, ...]
"""What a span may show, by its `activity`; csrc/core/trace.h says which fields each fills in."""

class Trace:
    """The recorder of a timeline: spans of what the mechanism did. Off until started; any thread."""

    def __init__(self) -> None: ...
    def start(self, capacity: int = 1 << 20) -> None:
        """Records from now on, at most `capacity` spans between two take(); forgets what there was."""
    def stop(self) -> None:
        """What was recorded stays until it is taken."""
    def take(self) -> npt.NDArray[np.void]:
        """The spans since the last call, in the order in which they ended: a structured array.

        int64 start_ns, end_ns (of time.monotonic_ns), bytes; int32 activity, layer, expert, pool, count,
        distinct, ok, -1 where an activity has none.
        """
    @property
    def on(self) -> bool: ...
    @property
    def dropped(self) -> int:
        """Spans that found no room since start()."""
    def __len__(self) -> int: ...

class Churn:
    """What evictions and uploads were good for (csrc/core/churn.h): bookkeeping by itself."""

    def __init__(self) -> None: ...
    def loaded(self, layer: int, expert: int) -> None: ...
    def evicted(self, layer: int, expert: int, version: int) -> None: ...
    def executed(self, layer: int, version: int, wanted: Sequence[bool], hit: Sequence[bool]) -> None: ...
    @property
    def n_wasted(self) -> int:
        """Uploads whose expert was evicted without a hit in between."""
    @property
    def n_early(self) -> int:
        """Evictions of experts that the next execution of their layer wanted."""

# Experts

class LayerInfo:
    """One MoE layer, in the order in which layers run."""

    @property
    def name(self) -> str:
        """The name of its down projection's tensor."""
    @property
    def n_expert(self) -> int: ...
    @property
    def n_used(self) -> int:
        """Experts per token, as last seen in a graph (0 before the first one)."""
    @property
    def expert_bytes(self) -> int: ...
    @property
    def pool(self) -> int:
        """Layers with experts of equal shapes and types share a pool of slots."""

class SlotStats:
    @property
    def n_slots(self) -> int: ...
    @property
    def n_resident(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Device memory of the slots."""

class Experts:
    """The experts of one loaded model.

    L layers, N experts in the largest of them. Any thread may call anything.
    """

    @property
    def n_layer(self) -> int:
        """L: known once the model's first context exists, 0 before."""
    @property
    def n_expert(self) -> int:
        """N."""
    @property
    def layers(self) -> list[LayerInfo]: ...
    def attach_slots(self, n_slots: int) -> None:
        """Allocates slots on the device; replaces and empties what was there. Raises OutOfMemoryError."""
    def slots_that_fit(self, margin_bytes: int = 0) -> int: ...
    @property
    def slots(self) -> SlotStats: ...
    @property
    def pool_slots(self) -> list[int]: ...
    @property
    def host_memory(self) -> str:
        """How experts lie: "pinned", "pinned mapping", "staged" (copies pass a pinned ring) "pageable" or
        "paged" (more than memory holds: read from the file as they are needed). "partly pinned": a part of
        the file's mapping is registered, and the others are staged."""
    @property
    def host_bytes(self) -> HostBytes:
        """What the device's driver has pinned of them; known as the layers are, 0 after the model's end."""
    def submit(self, priority: Int32Array, threshold: Int32Array) -> None:
        """The plan from now on: priority int32[L, N], threshold int32[L], in C order. Both are copied."""
    def settle(self, timeout_s: float) -> bool:
        """Waits until no wanted expert can be loaded any more; False when that took longer."""
    def residency(self) -> Int32Array:
        """int32[L, N]: the slot of every expert in its pool, -1 when not resident. A copy."""
    def set_counting(self, counting: bool) -> None: ...
    def take_demand(self) -> tuple[Int32Array, int]:
        """int32[L, N] activations since the last call (zeroed by it), and the graphs they stem from."""
    def routes(self) -> Int32Array:
        """int32 [L, T, U]: the experts that every token of the last verification (or decode) was routed to.

        T and U are the largest numbers of tokens and of experts for each in any layer; -1 where a layer had
        fewer (the last layer may compute only the tokens whose logits are wanted). A copy, read-only.
        """
    def take_layer_costs(self) -> npt.NDArray[np.void]:
        """What every layer's decoding cost since the last call: a structured array [L], see Step.layer_costs.

        A session takes them after each verification.
        """
    def set_step_tokens(self, n_max: int) -> None: ...
    def set_lookahead(self, n_layers: int) -> None:
        """How many layers ahead experts are foreseen and loaded in a step; 0: not (backend/experts.h).

        Raises InputError for a negative number."""
    def set_stream_tokens(self, n_min: int) -> None:
        """Batches of n_min tokens that are no demand have all experts copied through the device; 0: never."""
    def stream_bytes(self) -> int:
        """Device memory that this takes from the first such batch on; slots_that_fit() leaves room for it."""
    @property
    def trace(self) -> Trace: ...
    @property
    def stats(self) -> dict[str, int]:
        """Counters since the model was loaded, by the names of ExpertStats in csrc/backend/experts.h."""

class HostBytes:
    """Experts' bytes in host memory."""

    @property
    def pinned(self) -> int:
        """In memory that the device's driver has pinned."""
    @property
    def pageable(self) -> int:
        """The others."""
    @property
    def why(self) -> str:
        """What kept a part from being pinned that could have been: "off", "limit", "refused", or ""."""

HUGE_PAGE: int
"""The size of a huge page: 2 MB."""

class Region(Buffer):
    """Read-only memory that begins at a multiple of 2 MB, and is freed with the object."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def huge_bytes(self) -> int:
        """Bytes that are on huge pages now."""

class HugeCopies:
    """Copies a model's files to huge pages, with so many threads. The figures are of all files together.

    `drop_cache`: the system's cache of what is copied goes. A copy is given up that would take longer than
    `most_seconds` (0: no limit) of the threads' processor time. A page's first touch that takes longer than
    `stall_page_ns` is a stall. The rest goes to small pages when stalls come to more than `stall_total_ns`,
    and the system has compacted memory `stall_compactions` times meanwhile. `progress` gets the bytes copied
    so far; when it returns False or raises, the copying stops. Pages lie in the memories of these NUMA
    `nodes` by turns, where the system lets them; without `nodes`, in that of the thread that copies.
    """

    def __init__(
        self,
        n_threads: int,
        drop_cache: bool,
        most_seconds: float,
        stall_page_ns: int,
        stall_total_ns: int,
        stall_compactions: int,
        progress: Callable[[int], bool] | None = None,
        nodes: list[int] = ...,
    ) -> None: ...
    def copy(self, fd: int, n_bytes: int) -> Region:
        """Copies the first bytes of a file. The region is empty where that fails."""
    @property
    def bytes(self) -> int: ...
    @property
    def huge_bytes(self) -> int:
        """Those that were on huge pages at the end."""
    @property
    def seconds(self) -> float: ...
    @property
    def stalled(self) -> bool:
        """True if the rest went to small pages."""
    @property
    def stopped(self) -> bool:
        """True if progress stopped it."""
    @property
    def failure(self) -> str:
        """Why a file was not copied; "" where none failed."""
    @property
    def error(self) -> BaseException | None:
        """The exception that progress raised."""

class ReadRates:
    """The rates at which a file's mapping and its copy on huge pages are read, in GB/s."""

    @property
    def mapped_gb_s(self) -> float: ...
    @property
    def huge_gb_s(self) -> float: ...
    @property
    def gain(self) -> float:
        """The copy is read this many times as fast."""
    @property
    def copy_gb_s(self) -> float:
        """At which the copy was made."""
    @property
    def bytes(self) -> int:
        """Those that were read each time."""
    @property
    def huge_bytes(self) -> int:
        """The bytes of the copy that were on huge pages."""

def measure_read_rates(fd: int, n_bytes: int, n_threads: int) -> ReadRates:
    """Reads samples of a file of about so many bytes together, in turns. Raises InputError for a file that
    is too small or cannot be mapped, OutOfMemoryError."""

class LoadScope:
    """Models loaded on this thread in the `with` block have their experts in `experts`.

    `paged`: these are more than memory holds: nothing is read of the file before it is needed, or pinned.
    `copies`: what copies the files to huge pages instead of mapping them; None: they are mapped.
    """

    def __init__(self, paged: bool = False, copies: HugeCopies | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    @property
    def experts(self) -> Experts | None: ...

class Tap:
    """What enters every FFN of the context made in its `with` block, for each token that it decodes alone.

    To be used by the thread that uses the context, between its decodes.
    """

    def __init__(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    @property
    def n_layer(self) -> int:
        """D: the FFNs found in the context's graphs, in the order in which they run.

        0 where the graphs do not run on a SPAC device in one piece, and before the context is made.
        """
    @property
    def n_embd(self) -> int:
        """E: the width of what enters them."""
    def set_on(self, on: bool) -> None:
        """Whether to tap from now on; off at first, and then it costs nothing. Raises OutOfMemoryError."""
    def states(self) -> npt.NDArray[np.float32] | None:
        """float32 [D, E] of the token decoded last, once its logits have been read; None where it was not
        tapped or not alone. A read-only view that the next decode writes to.
        """
    @property
    def n_tapped(self) -> int:
        """Tokens that were tapped so far."""

# The session

class Step:
    """What one step did."""

    @property
    def tokens(self) -> Int32Array:
        """int32[n]: the accepted draft tokens, then the target's own. Read-only."""
    @property
    def n_drafted(self) -> int:
        """Draft tokens that were verified."""
    @property
    def n_accepted(self) -> int: ...
    @property
    def n_verified(self) -> int:
        """Tokens in the verification batch: n_drafted + 1."""
    @property
    def demand(self) -> Int32Array:
        """int32[L, N]: how often this verification wanted every expert; [0, 0] without experts.

        A read-only view on the session's one buffer: the next step overwrites it.
        """
    @property
    def layer_costs(self) -> npt.NDArray[np.void]:
        """What every layer of this verification took and computed: a structured array, [L] or [0].

        int64 host_ns (experts on the CPU), wait_ns (waiting for ids and input), int32 host_activations,
        host_distinct, device_activations, device_distinct. A read-only view that the next step overwrites.
        """
    @property
    def n_uploads(self) -> int:
        """Experts copied into slots since the step before was verified."""
    @property
    def upload_bytes(self) -> int: ...
    @property
    def upload_ns(self) -> int:
        """The time that these copies took."""
    @property
    def draft_ns(self) -> int: ...
    @property
    def verify_ns(self) -> int: ...
    @property
    def sample_ns(self) -> int: ...
    @property
    def reason(self) -> Literal["", "stop", "length"]:
        """Why generation ends: an end-of-generation token came, or the context is full."""

class DraftToken:
    """Event "draft_token": a draft token, as soon as it is known."""

    @property
    def token(self) -> int: ...
    @property
    def index(self) -> int:
        """From 0, in this draft."""
    @property
    def routes(self) -> Int32Array | None:
        """int32[L, T, U]: what the draft's routers chose for the first T tokens that the target will verify,
        -1 where a layer has fewer: the token before the draft, then the drafted ones but this, the last. A
        copy; None unless they are kept."""

class VerifyLayer:
    """Event "verify_layer": an MoE layer of the verification that runs has been computed.

    While somebody asks for it, the host waits for the ids of wholly resident layers too.
    """

    @property
    def layer(self) -> int: ...
    @property
    def demand(self) -> Int32Array:
        """int32[n_expert of the layer]: how often the verification wanted every expert. A copy."""

class DraftEnd:
    """Event "draft_end": the draft that is about to be verified, possibly empty."""

    @property
    def tokens(self) -> Int32Array:
        """int32[n_drafted]. A copy."""
    @property
    def draft_ns(self) -> int: ...
    @property
    def routes(self) -> Int32Array | None:
        """As of the last token; of all, T = n_drafted + 1, where the draft ended at one that it refused."""

class ChatPrompt:
    """What messages become, and how their answer is read. Made by `ChatTemplates.apply`; needs no model."""

    @property
    def text(self) -> str:
        """The prompt, without the beginning token where tokenizing adds it."""
    @property
    def stops(self) -> list[str]:
        """Texts that end the answer, beside the model's end tokens."""
    @property
    def preserved_tokens(self) -> list[int]:
        """Control tokens that belong to the text which `read` gets, ascending; others do not."""
    @property
    def thinks(self) -> bool:
        """Whether the model may reason before it answers."""
    @property
    def goes_on(self) -> bool:
        """Whether the answer goes on with the last message; `read` then tells both as one."""
    def read(self, answer: str, *, is_partial: bool) -> str:
        """The message that an answer makes, as JSON in OpenAI's form: `content`, `reasoning_content`,
        `tool_calls`. `is_partial`: the answer goes on. Raises InputError for one that is not of the format.
        """

class ChatTemplates:
    """A model's chat templates. The model has to outlive the calls of `apply`."""

    def __init__(self, model: int, source: str = "") -> None:
        """`model`: the address of a llama_model; `source`: a Jinja template in place of the file's.

        Raises InputError where there is none, or it cannot be read.
        """
    @property
    def capabilities(self) -> dict[str, bool]:
        """What the template has a place for, such as `supports_system_role`, by llama.cpp's names."""
    @property
    def can_stop_thinking(self) -> bool:
        """Whether `enable_thinking` makes a difference."""
    def apply(self, request: str) -> ChatPrompt:
        """`request`: JSON text with `messages`, and maybe `tools`, `tool_choice`, `parallel_tool_calls`,
        `json_schema`, `enable_thinking`, `chat_template_kwargs`. With `continue_final_message`, the answer
        goes on with the last message (`ChatPrompt.goes_on`). Raises InputError.
        """

class Session:
    """One sequence of tokens, drafted and verified.

    The library works without the GIL. One call at a time: a second one raises InputError, but for cancel()
    and set_draft_length(), which any thread and any callback may call. Ctrl-C is seen while a call runs: what
    the signal handler raises leaves the call, and the session can go on.
    """

    def __init__(
        self,
        target_ctx: int,
        draft_ctx: int | None = None,
        experts: Experts | None = None,
        *,
        owner: object = None,
        trace: Trace | None = None,
        draft_experts: Experts | None = None,
        draft_types: Sequence[str] = (),
        draft_max: int = 16,
        draft_min: int = 0,
        p_min: float = 0.0,
        ngram_size_n: int = 12,
        ngram_size_m: int = 48,
        ngram_min_hits: int = 1,
        ngram_mod_n_match: int = 24,
        ngram_mod_n_min: int = 48,
        ngram_mod_n_max: int = 64,
        seed: int | None = None,
        temp: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typ_p: float = 1.0,
        top_n_sigma: float = -1.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        repeat_last_n: int = 64,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_penalty_last_n: int = 64,
        mirostat: int = 0,
        mirostat_lr: float = 0.1,
        mirostat_ent: float = 5.0,
        grammar: str = "",
        logit_bias: Mapping[int, float] = ...,
        ignore_eos: bool = False,
        samplers: Sequence[str] | None = None,
        chat: ChatPrompt | None = None,
        reasoning_budget: int = -1,
        prompt_cache_bytes: int = 0,
        n_checkpoints: int = 0,
        checkpoint_step: int = 8192,
    ) -> None:
        """Contexts are the addresses of llama_contexts.

        They belong to the session until it is closed: it clears their memory and sets their abort callbacks;
        they must have been made with n_outputs_max 0. Close it before they are freed; `owner` is kept alive
        until then. Between its calls the target may be used otherwise, if adopt() says so afterwards.
        `draft_experts` are the draft model's, for keep_draft_routes().

        `draft_types` are llama.cpp's names (draft_types()); with none, or draft_max 0, it decodes plainly.
        The first draft length is `draft_max`. Sampling parameters are llama.cpp's; temp <= 0 is greedy, seed
        None a random one.

        `prompt_cache_bytes` of host memory hold sequences that prefill() leaves for others: a prompt that
        goes on with one is not evaluated again. `n_checkpoints` are kept of a memory that cannot go back
        (recurrent; with a window that is not kept whole), at the end of prompts and every `checkpoint_step`
        tokens within them; without, such a memory is cleared where it would have to.
        """
    def prefill(
        self,
        tokens: Int32Array | Sequence[int],
        progress: Callable[[int, int], object] | None = None,
        *,
        n_unseen: int = 0,
    ) -> None:
        """Makes `tokens` (the whole sequence, at least one) the context of what is generated next.

        Evaluates all but the last in pieces of n_batch, after each of which `progress(n_done, n_total)` is
        called; what the memory holds of it already is kept. Starts the sampler anew. None of it counts as
        demand. When it is stopped (Cancelled, or an exception of `progress`), the next prefill or step goes
        on from there. The sampler has seen (penalties look back on) all but the first `n_unseen` tokens.
        """
    def adopt(self, tokens: Int32Array | Sequence[int]) -> None:
        """Says that the target context was used otherwise since the last call, and begins with `tokens` now.

        What follows them there is dropped; `n_past` says how many of them are really there. The next call
        must be prefill().
        """
    def set_sampling(
        self,
        *,
        seed: int | None = None,
        temp: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typ_p: float = 1.0,
        top_n_sigma: float = -1.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        repeat_last_n: int = 64,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_penalty_last_n: int = 64,
        mirostat: int = 0,
        mirostat_lr: float = 0.1,
        mirostat_ent: float = 5.0,
        grammar: str = "",
        logit_bias: Mapping[int, float] = ...,
        ignore_eos: bool = False,
        samplers: Sequence[str] | None = None,
        chat: ChatPrompt | None = None,
        reasoning_budget: int = -1,
    ) -> None:
        """How to sample from the next prefill on. Raises InputError, changing nothing, for what cannot be."""
    def step(self) -> Step:
        """Drafts, verifies, accepts: at least one token, unless the context is full.

        An exception before the verification ended (Cancelled, or one of a callback) leaves the sequence as it
        was. One of the "verify_end" callback comes after the tokens became part of it: they are in
        `last_step`.
        """
    @property
    def last_step(self) -> Step: ...
    def probabilities(
        self, n_top: int
    ) -> tuple[npt.NDArray[np.float32], Int32Array, npt.NDArray[np.float32]]:
        """How probable the target held the last step's T tokens: their natural logarithms float32[T], and the
        N most probable tokens at their places, best first: int32[T, N] and their logarithms float32[T, N].

        Before any sampler, over the whole vocabulary. Raises InputError when the logits are gone: before the
        first step, and from the next prefill() or adopt() on.
        """
    @overload
    def on(self, event: Literal["draft_token"], callback: Callable[[DraftToken], object] | None) -> None: ...
    @overload
    def on(self, event: Literal["draft_end"], callback: Callable[[DraftEnd], object] | None) -> None: ...
    @overload
    def on(
        self, event: Literal["verify_layer"], callback: Callable[[VerifyLayer], object] | None
    ) -> None: ...
    @overload
    def on(self, event: Literal["verify_end"], callback: Callable[[Step], object] | None) -> None: ...
    @overload
    def on(self, event: str, callback: Callable[[Any], object] | None) -> None:
        """Calls `callback` at the event, in place of the one before; None: no more.

        With draft type "draft-simple" alone, "draft_token" comes while the draft model drafts; other types
        draft in one call, and their tokens come together after it.
        """
    def keep_draft_routes(self, keeps: bool) -> None:
        """Whether draft events have `routes`. Raises InputError without `draft_experts`, and for other draft
        types than "draft-simple" alone."""
    def reset(self) -> None:
        """Forgets all tokens, and a cancel() that no call has seen yet."""
    def cancel(self) -> None:
        """Stops the call that runs, or the next one if none does: it raises Cancelled. From any thread."""
    def close(self) -> None:
        """Lets go of the contexts. The session cannot be used afterwards."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def set_draft_length(self, n: int) -> None:
        """From the next step on, 0 to draft_max."""
    @property
    def draft_length(self) -> int: ...
    @property
    def draft_max(self) -> int: ...
    @property
    def n_reused(self) -> int:
        """Tokens of the last prompt that were there already: in the memory, or kept of another time."""
    @property
    def cached(self) -> dict[str, int]:
        """What is kept of other sequences: `n_prompts`, `bytes`; since the start, `n_stored` and
        `n_recalled`."""
    @property
    def n_past(self) -> int:
        """Tokens in the target's memory: all of the sequence but the last, between steps."""
    @property
    def n_ctx(self) -> int: ...
    @property
    def tokens(self) -> Int32Array:
        """int32[n]: the whole sequence. A copy."""

def vocab_mismatch(target_model: int, draft_model: int) -> str | None:
    """Why the draft's tokens do not mean the same to the target, or None. Addresses of llama_models."""

def draft_types() -> list[str]:
    """The draft types that llama.cpp knows, by its names."""

def needs_draft_context(draft_type: str) -> bool: ...
def set_common_verbosity(level: int) -> None:
    """Messages of llama.cpp's common library on stderr: -1 none (default), 1 errors, 2 warnings, 5 all."""

# MoE-SpAc's step

class MoeSpac:
    """MoE-SpAc's step in its default form (csrc/core/moe_spac.h), on arrays that it changes in place."""

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        n_level: int,
        per_step: float,
        forgetting: float,
        adapt: bool,
    ) -> None:
        """arrays: int32 [L, N] utility, used; float64 [L, N] up, down, last, count; float64 [2, L, K] hot;
        float64 [2, L, 1] total; uint8 [L, N] exists; int32 [L] pool; int32 [P] pool_slots, but for whole
        layers; uint8 [L] whole. All are kept.
        """
    def set_times(self, times: Sequence[Sequence[float]], draft_token: float) -> None:
        """Seconds, [L] each: per pair, distinct expert and layer of the CPU, device's expert, upload."""
    def step(
        self,
        demand: Int32Array,
        slot_of: Int32Array,
        n_verified: int,
        n_drafted: int,
        number: int,
        share: float,
        kept: float,
        order: Int32Array | None,
        /,
    ) -> tuple[Int32Array, Int32Array, Int32Array]:
        """priority int32[L, N], threshold int32[L], and tau int32[L]. order: int32[L, N] within a level, 0 to
        2^20 - 1; None: by decayed counts."""

# The learned scheduler's step

class Logistic:
    """The learned scheduler's step (csrc/core/logistic.h), on arrays that it changes in place."""

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        rate: float,
        margin: float,
        kept: tuple[float, float, float],
        squares_kept: float,
        least: float,
        most: float,
    ) -> None:
        """arrays: float64 [7] weights, squares; float64 [6, L, N] features; float64 [L, N] probability;
        uint8 [L, N] exists; int32 [L] pool; int32 [P] pool_slots, but for whole layers; uint8 [L] whole.
        All are kept.
        kept: what a token leaves of the features recent, near and far.
        """
    def step(
        self,
        demand: Int32Array,
        slot_of: Int32Array,
        routes: Int32Array | None,
        n_verified: int,
        n_rejected: int,
        /,
    ) -> tuple[Int32Array, Int32Array]:
        """priority int32[L, N] and threshold int32[L]; routes: int32[L, T, U], -1 padded."""

class WholeLayers:
    """Which layers are to be whole (csrc/core/whole_layers.h), on arrays that it changes in place."""

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        looks: int,
        share: float,
        horizon: float,
        need: float,
        trial: int,
        at_once: int,
    ) -> None:
        """arrays: uint8 [L] whole; int32 [P] slots_left, pool_slots; float64 [L] gain; float64 [P, 3, 2]
        seen; int32 [P, 2] looks; uint8 [L, N] exists; int32 [L] pool. All are kept.
        """
    def set_times(self, times: Sequence[Sequence[float]], hand_off: float) -> None:
        """Seconds, [P] each: per expert and pair of the CPU, device's expert, upload.

        hand_off: below 0 where it is not known.
        """
    def look(
        self,
        chance: npt.NDArray[np.float64],
        priority: Int32Array,
        demand: Int32Array,
        slot_of: Int32Array,
        /,
    ) -> bool:
        """One look at a step, arrays [L, N]; whether layers have changed sides."""

# What the policy counts, learns and solves at every step

def hot_cold(
    demand: Int32Array, priority: Int32Array, threshold: Int32Array, exists: npt.NDArray[np.bool_]
) -> tuple[int, int, int, int, int]:
    """Activations in demand int32[L, N]; then experts: activated, wanted by priority int32[L, N] and
    threshold int32[L], both, existing by bool[L, N]."""

class Acceptance:
    """`spac.governor.acceptance.Rate` (csrc/core/acceptance.h)."""

    def __init__(
        self, n: int, prior: float, options: tuple[float, float, float, float, float, float]
    ) -> None:
        """options: steps, trials, trials of a prior, steps of the window, surprise, forget."""
    def age(self, steps: int = 1) -> None: ...
    def observe(self, n_success: int, failed: bool) -> bool: ...
    def estimate(self) -> tuple[Float64Array, Float64Array]: ...

class SizeTimes:
    """`spac.governor.times.SizeTimes` (csrc/core/size_times.h)."""

    def __init__(
        self, n: int, kept: int, options: tuple[float, float, float, float], doubts: Sequence[float]
    ) -> None:
        """kept: observations of a size; options: plausible, most, beyond, aging; doubts: [kept + 1]."""
    def start(self, times: Float64Array) -> None: ...
    def add(
        self, size: int, seconds: float, step: int, *, passing: bool = False, speed: float = 1.0
    ) -> None: ...
    def has(self, size: int) -> bool: ...
    def estimate(self, extra: Float64Array) -> Float64Array: ...
    def shift(self, seconds: Float64Array) -> None: ...
    def doubt(self, total: Float64Array, step: int, speed: float) -> Float64Array: ...

class DemandShare:
    """The arrays of `spac.governor.times.Misses` (csrc/core/demand_share.h), changed in place."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """arrays: [L, N] float64 share, int32 demand. Both are kept."""
    def add(self, demand: Int32Array) -> None: ...
    def renew(self, resident: npt.NDArray[np.bool_], n_tokens: int, kept: float, n_bins: int) -> Float64Array:
        """The demand of n_tokens moves the shares, and ends. float64[n_bins]: the absent by the root of
        theirs."""

def roofline_curve(
    accept: Float64Array,
    go_on: Float64Array,
    draft_base: float,
    draft_token: float,
    verify: Float64Array,
    misses: Float64Array,
    price: float,
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    """The fields of a `spac.governor.model.Curve` (csrc/core/roofline.h), float64[K + 1] each."""

class RobustFit:
    """`spac.costs.robust.RobustFit` (csrc/core/robust_fit.h)."""

    def __init__(
        self,
        units: Sequence[float],
        kept: float,
        window: tuple[int, int],
        options: tuple[float, float, float, float],
    ) -> None:
        """window: measurements that say what is usual, and how many are needed; options: reach, surprise,
        kept in surprise, least seconds."""
    @property
    def units(self) -> list[float]: ...
    def predict(self, amounts: Sequence[float]) -> float: ...
    def observe(self, amounts: Sequence[float], seconds: float) -> None: ...

class LayerWaits:
    """The arrays of `spac.costs.device_time.DeviceTime` (csrc/core/layer_waits.h), changed in place."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], kept: float, most: float) -> None:
        """arrays: float64 [F] loss, factors, doubt; int32 [1] at; float64 [L] each. All are kept."""
    def observe(
        self, layers: npt.NDArray[np.void], total_s: float, dense_s: float, usual_s: float
    ) -> tuple[float, float, tuple[float, float] | None] | None:
        """A step without its draft; layers: its `layer_costs`. None where no two layers in a row were waited
        for, else the usual wait and the time without experts, as they were; and where there were whole layers
        between those, what each was spared, and what the device computed there by a factor of 1."""

# The slot table by itself

class SlotTable:
    """Which expert is in which slot: bookkeeping without a device. Experts are (layer, expert)."""

    def __init__(self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int]) -> None:
        """layers: (n_expert, pool) in the order in which they run."""
    @property
    def n_held(self) -> int: ...
    def n_free(self, pool: int) -> int: ...
    def slot_of(self, layer: int, expert: int) -> int: ...
    def acquire(self, layer: int, expert: int) -> int: ...
    def evict(self, layer: int, expert: int) -> int: ...
    def release(self, pool: int, slot: int) -> None: ...
    def toward(
        self, priority: Int32Array, threshold: Int32Array, cursor: int
    ) -> list[tuple[str, tuple[int, int], tuple[int, int] | None]]:
        """Steps toward a plan: ("use_free" | "wait" | "use_evicted", load, evicted or None)."""
    def check_integrity(self) -> None:
        """Raises InternalError when the table contradicts itself."""

class Mask:
    """One version of a layer's ids mask; it lives as long as this object."""

    @property
    def version(self) -> int: ...
    @property
    def slot_of(self) -> list[int]: ...

class Residency:
    """Slot table, masks and plan, driven step by step (core/residency.h). One thread."""

    def __init__(self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int]) -> None: ...
    def submit(self, priority: Int32Array, threshold: Int32Array) -> None: ...
    def begin(self, cursor: int, max_loads: int, max_evictions: int) -> list[tuple[int, int, int, int]]:
        """(layer, expert, pool, slot) to copy now: a batch. finish() is for the oldest one."""
    def finish(self, copied: bool) -> None: ...
    def foresee(self, layer: int, experts: Sequence[int]) -> None: ...
    def note_used(self, layer: int, experts: Sequence[int]) -> None: ...
    def mask(self, layer: int) -> Mask: ...
    def slot_of(self, layer: int, expert: int) -> int: ...
    @property
    def settled(self) -> bool: ...
    def check_integrity(self) -> None: ...

def share_out(n_slots: int, layers: Sequence[tuple[int, int]], n_pool: int) -> list[int]:
    """Slots of every pool, in proportion to its experts."""

def slots_per_tensor(blocks_per_slot: int) -> int:
    """How many slots of so many blocks (elements, where a type has none) one stacked tensor may have."""

def most_slots(limits: Sequence[int], layers: Sequence[tuple[int, int]]) -> int:
    """The most slots whose shares (`share_out`) stay within every pool's limit; `layers` as there."""

def copy_runs(slot_of: Sequence[int], expert_bytes: int, copy_bytes: int) -> list[tuple[int, int, int]]:
    """(first expert, how many, slot or -1) of the copies that bring a layer's experts together on the device.

    Residents are copied from their slots, the others over the link, together with residents between them
    where that is no slower: a copy of its own takes as long as `copy_bytes` over the link.
    """

def pin_slices(
    mapping: tuple[int, int], weights: Sequence[tuple[int, int]], page: int, slice: int, most: int
) -> list[tuple[int, int]]:
    """(begin, end) of the slices in which a mapping is registered; `weights` are sorted and disjoint.

    Whole pages in the mapping, about `slice` bytes each and `most` together; all borders lie in weights.
    """

def pinned_pieces(pinned: Sequence[tuple[int, int]], begin: int, bytes: int) -> list[tuple[int, int, bool]]:
    """(offset, bytes, whether pinned) of the parts of a copy's source, none of which crosses a border."""
