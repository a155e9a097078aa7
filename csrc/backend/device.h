// The devices that spac can put experts on, and the choice of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spac {

// A device's memory in bytes (device_memory.h says what is counted).
struct DeviceMemory {
    size_t   free             = 0; // what may still be allocated: within the limit
    size_t   total            = 0; // of the device
    size_t   limit            = 0; // on what this process takes; 0: none
    size_t   used             = 0; // by buffers of this process
    size_t   peak             = 0; // of `used`, since the limit was set
    uint64_t n_device_buffers = 0; // allocated so far
    uint64_t n_host_buffers   = 0; // allocated so far: host memory that the device copies from

    size_t size() const { return limit > 0 && limit < total ? limit : total; } // what it acts as having
};

// What the SPAC device wraps: a real accelerator, or the stand-in.
struct DeviceInfo {
    std::string  name;        // "CUDA0", "stand-in", …: what --device takes (case does not matter)
    std::string  description; // the card's model name
    DeviceMemory memory;
    bool         is_stand_in;
    bool         reads_masks; // its kernels read ids masks, and have been tried; see set_trust_device_masks
};

// All inner devices that can be chosen, real ones first. Never throws: a driver that is missing yields no device.
std::vector<DeviceInfo> devices();

// The wrapping device of the inner device `name`, made on first use and kept until the process ends: a
// ggml_backend_dev_t for llama_model_params.devices. Throws InputError naming the known devices.
void * device_handle(const std::string & name);

// The inner device of the one SPAC device that llama.cpp's registry shows to programs that choose none. Must be called
// before the first model is loaded; the default is the first real device, else the stand-in.
void        set_default_device(const std::string & name);
std::string default_device();

// Has the buffers of this process on a device take so many bytes together at most, from the next one on; 0: as many as
// there are. Throws InputError naming the known devices.
void set_memory_limit(const std::string & name, size_t bytes);

// An allocation of device memory that failed, with what there was at that moment.
struct MemoryRefusal {
    std::string  device; // empty: none failed
    size_t       asked = 0;
    DeviceMemory memory;
};
// The first one on this thread since the last call.
MemoryRefusal take_memory_refusal();

// The stand-in's speed and faults, for tests and for showing what a slow link does. They apply from now on.
struct StandInSettings {
    double upload_gb_s  = 0;  // host-to-device bandwidth; 0 = as fast as memory
    double latency_us   = 0;  // added to every copy and launch, but not to those that fill slots: a link is a pipeline
    double delay_us     = 0;  // a random delay up to this before every queued operation
    long   memory_mb    = 0;  // memory it claims to have; 0 = half of the host's
    int    fail_uploads = 0;  // the next so many uploads into slots fail
    int    n_threads    = 1;  // threads that compute on it
    double spin_us      = 50; // how long its threads, and who waits for it, look before they sleep
    long   pin_limit_mb = -1; // host memory that its driver registers, in MiB; -1: it has no such function
};
void            set_stand_in(const StandInSettings & settings);
StandInSettings stand_in();

// Whether what follows the host's part of a layer is queued before the host has done it, where the device can wait for
// the host (gate.h); from the next graph on. Without a choice: on real devices, not on the stand-in, which computes on
// the cores that the helper would take. It is switched off when a gate's deadline passes.
void                set_launch_ahead(std::optional<bool> on);
std::optional<bool> launch_ahead();

// How many seconds a thread waits at a gate, or for the helper, before the graph fails and launching ahead is switched
// off; from the next wait on. Without a choice: 20; 0: for ever.
void   set_gate_timeout(std::optional<double> seconds);
double gate_timeout();

// Switches the hand-over in place: a layer's ids, input and rows pass between device and host in pinned memory that
// kernels read and write themselves, without copies. Without a choice: on GPUs that can, not on the stand-in. For
// graphs prepared from now on.
void                set_hand_over_in_place(std::optional<bool> on);
std::optional<bool> hand_over_in_place();

// Whether GPUs read ids masks with their own kernels. Without a choice: those do whose patched kernels have been tried,
// which are CUDA's (tests/cuda_host). For contexts made from now on; the stand-in's always do.
void                set_trust_device_masks(std::optional<bool> on);
std::optional<bool> trust_device_masks();

// How the mapping of a model's experts is registered with the device's driver; for models loaded from now on.
struct Pinning {
    bool   on    = true;
    size_t limit = SIZE_MAX;        // bytes of all models of the process together
    size_t slice = size_t{1} << 30; // bytes of one registration: what is refused is lost by the slice
};
void    set_pinning(const Pinning & how);
Pinning pinning();

// Faults for negative controls in tests ("": none; "swap-slots": two slots of every layer are exchanged behind the
// mask's back; "drop-join": the host's rows are not joined; "early-turn": a large batch reads experts that may not have
// come yet; "early-release": it lets go of the slots that it copies from before it has; "no-kernel": the device cannot
// compute experts; of launching ahead, "stuck-gate": the device does not signal, "stuck-call": a call that queues comes
// back only when the gates behind it are open, "dead-device": the device never gets past a gate; "compact": no fault,
// but the device side compacts (token, expert) pairs instead of reading the mask).
void set_fault(const std::string & fault);

} // namespace spac
