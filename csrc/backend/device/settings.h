// What is switched for the whole process: launching ahead and its deadline, trust in a device's masks, pinning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace spac {

// Whether what follows the host's part of a layer is queued before the host has done it, where the device can wait for
// the host (stream_gate.h); from the next graph on. Without a choice: on real devices, not on the simulated device,
// which computes on the cores that the helper would take. It is switched off when a gate's deadline passes.
void                set_launch_ahead(std::optional<bool> on);
std::optional<bool> launch_ahead();

// How many seconds a thread waits at a gate, or for the helper, before the graph fails and launching ahead is switched
// off; from the next wait on. Without a choice: 20; 0: for ever.
void   set_gate_timeout(std::optional<double> seconds);
double gate_timeout();

// Switches the hand-over in place: a layer's ids, input and rows pass between device and host in pinned memory that
// kernels read and write themselves, without copies. Without a choice: on GPUs that can, not on the simulated device.
// For graphs prepared from now on.
void                set_hand_over_in_place(std::optional<bool> on);
std::optional<bool> hand_over_in_place();

// Whether GPUs read ids masks with their own kernels. Without a choice: those do whose patched kernels have been tried,
// which are CUDA's (tools/cuda_host). For contexts made from now on; the simulated device's always do.
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

} // namespace spac
