// The simulated device: an asynchronous device made of host memory and a worker thread, for tests and for machines
// without a GPU.
//
// It behaves like a GPU where a plain CPU device does not. Its buffers are not host memory. Every backend instance is a
// stream with its own worker. A launch captures its tensors and runs later. Asynchronous copies read and write host
// memory late. Only events order streams. Speed, memory size and faults can be set (settings.h). There may be several
// of them, of different size and speed: "simulated", "simulated1", and so on.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/simulated_device/settings.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace spac {

// One simulated device: its settings, its memory and its link. It lives until the process ends.
class SimulatedDevice {
  public:
    explicit SimulatedDevice(int index);
    SimulatedDevice(const SimulatedDevice &)             = delete;
    SimulatedDevice & operator=(const SimulatedDevice &) = delete;

    ggml_backend_dev_t         handle() { return &device_; }
    const char *               name() const { return name_.c_str(); }
    ggml_backend_buffer_type_t memory_type() { return &memory_type_; }
    ggml_backend_buffer_type_t pinned_type() { return &pinned_type_; }

    void              set(const SimulatedSettings & settings);
    SimulatedSettings settings() const;

    // Returns true if the next upload has to fail, and counts it off SimulatedSettings::fail_uploads.
    bool fail_upload();
    // Returns the time at which a copy of so many bytes ends on the link. The copies of all streams follow each other.
    std::chrono::steady_clock::time_point end_on_link(size_t bytes, double gb_s);

    std::atomic<size_t> memory_used{0}; // bytes

  private:
    const std::string        name_;
    mutable std::mutex       mutex_;
    SimulatedSettings        settings_;
    std::atomic<int>         uploads_to_fail_{0};
    ggml_backend_device      device_;
    ggml_backend_buffer_type memory_type_, pinned_type_;

    std::mutex                            link_mutex_;
    std::chrono::steady_clock::time_point link_free_at_;
};

// Returns the first simulated device.
ggml_backend_dev_t simulated_device();

// Returns the state of a simulated device.
SimulatedDevice & simulated_of(ggml_backend_dev_t device);

// The simulated device's memory. Its buffers are not host memory for ggml. It has a size, so it can run out like a
// graphics card's.

// Returns the size of a device's memory (SimulatedSettings::memory_mb) and the free part of it, in bytes.
void simulated_memory(const SimulatedDevice & device, size_t * free, size_t * total);

// Return the types of buffers in a device's memory, and in its pinned memory, which is plain host memory under its own
// name.
ggml_backend_buffer_type simulated_memory_type(SimulatedDevice & device);
ggml_backend_buffer_type simulated_pinned_type(SimulatedDevice & device);

// Register host memory with the devices' driver, up to SimulatedSettings::pin_limit_mb together, and end a
// registration.
bool simulated_register(void * begin, size_t bytes);
void simulated_unregister(void * begin);
// Ends the process if a copy's source lies across the border of a registration, which CUDA refuses.
void simulated_check_source(const void * data, size_t bytes);

} // namespace spac
