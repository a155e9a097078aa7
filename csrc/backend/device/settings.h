// Settings of the whole process: launching ahead and its deadline, the hand-off in place, trust in a device's masked
// kernels, pinning, threads for uploads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace spac {

// Switches launching ahead: the device's work behind the host's part of a layer is queued before the host has done its
// part. The device must be able to wait for the host (stream_gate.h). The setting holds from the next graph on. Without
// a choice it is on for real devices and off for the simulated device, which computes on the cores that the helper
// would take. It is switched off when a gate's deadline passes.
void                set_launch_ahead(std::optional<bool> on);
std::optional<bool> launch_ahead();

// Sets the seconds that a thread waits at a gate or for the helper. Then the graph fails, and launching ahead is
// switched off. The setting holds from the next wait on. Without a choice it is 20; 0 means no limit.
void   set_gate_timeout(std::optional<double> seconds);
double gate_timeout();

// Switches the hand-off in place: a layer's ids, input and rows pass between device and host without copies, in pinned
// memory that kernels read and write. The setting holds for graphs that are prepared from now on. Without a choice it
// is on for GPUs that can do it, and off for the simulated device.
void                set_hand_over_in_place(std::optional<bool> on);
std::optional<bool> hand_over_in_place();

// Switches whether devices read masks of ids with their own kernels. The setting holds for contexts that are made from
// now on. Without a choice, devices do whose masked kernels have been tested: CUDA's patched kernels (tools/cuda_host)
// and the simulated device's.
void                set_trust_device_masks(std::optional<bool> on);
std::optional<bool> trust_device_masks();

// The way in which the mapping of a model's experts is registered with the device's driver. It holds for models that
// are loaded from now on.
struct Pinning {
    bool   on    = true;
    size_t limit = SIZE_MAX;        // bytes of all models of the process together
    size_t slice = size_t{1} << 30; // bytes of one registration; a refusal leaves one slice unregistered
};
void    set_pinning(const Pinning & how);
Pinning pinning();

// Sets the number of threads that bring the experts of streamed prompts from pageable to pinned memory for uploads. 0
// leaves this to the driver, and a negative number measures which number is best, 0 included. The setting holds for
// weight streams that are made from now on. It is 0 at first, since no GPU has measured it yet.
void set_upload_threads(int n);
int  upload_threads();

} // namespace spac
