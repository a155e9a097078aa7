// The simulated device: an asynchronous device made of host memory and a worker thread, for tests and for machines
// without a GPU.
//
// It behaves like a GPU where a plain CPU device does not. Its buffers are not host memory. Every backend instance is a
// stream with its own worker. A launch captures its tensors and runs later. Asynchronous copies read and write host
// memory late. Only events order streams. Speed, memory size and faults can be set (settings.h). There may be several
// of them, of different size and speed: "simulated", "simulated1", and so on.
#pragma once

#include "backend/device/capabilities.h"
#include "backend/device/ggml_internals.h"
#include "backend/simulated_device/settings.h"
#include "core/not_copied.h"
#include "core/trace.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace spac {

// One simulated device: its settings, its memory and its link. It lives until the process ends.
class SimulatedDevice : NotCopied {
  public:
    explicit SimulatedDevice(int index);

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

    // Takes memory, and returns false if the device has not so much.
    bool take(size_t bytes);

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

// The simulated device's streams. Each is a queue with a worker thread, which runs the operations in order, with the
// delays of the settings.
//
// Operations hold events and captured graphs by shared pointers, so an event in use may be freed, as on a GPU.

class SimulatedEvent {
  public:
    explicit SimulatedEvent(const SimulatedDevice & device) : device_(device) {}
    uint64_t record() { return ++recorded_; }
    uint64_t last() const { return recorded_; }
    void     reach(uint64_t n);
    void     wait(uint64_t n);
    // Waits until the deadline of a gate at most. Returns true if the record was reached.
    bool     wait_patiently(uint64_t n);
    uint64_t reached() const { return reached_; }

  private:
    const SimulatedDevice & device_;
    std::mutex              mutex_;
    std::condition_variable changed_;
    std::atomic<uint64_t>   recorded_{0}; // number of the last record that was queued
    std::atomic<uint64_t>   reached_{0};  // number of the last record that its stream has passed
};

using SimulatedEventPtr = std::shared_ptr<SimulatedEvent>;

class SimulatedStream : public StreamExtension, NotCopied {
  public:
    explicit SimulatedStream(SimulatedDevice & device);
    ~SimulatedStream() override; // runs all queued operations first

    // Queue operations. A copy reads and writes host memory when it runs. `data` is in host memory.
    void write(void * dst, const void * data, size_t size);
    void read(const void * src, void * data, size_t size);
    // Copies inside the device, or to the memory of another one.
    void copy(void * dst, const void * src, size_t size, SimulatedDevice * other = nullptr);
    void record(const SimulatedEventPtr & event);
    void wait(const SimulatedEventPtr & event); // for the last record at the time of this call
    // Queue the same with numbers of the caller, a gate.
    void reach(const SimulatedEventPtr & event, uint64_t n);
    void wait(const SimulatedEventPtr & event, uint64_t n);
    // Queues a graph. Returns a failure if an earlier operation has failed.
    ggml_status launch(const ggml_cgraph * graph);

    void synchronize();

    SimulatedDevice & device() const { return device_; }

    std::unique_ptr<Gate> make_gate() override;
    void                  call(std::function<void()> what) override { push(std::move(what)); }
    void                  record_launch(std::shared_ptr<Trace> trace, const Span & span) override;
    void                  mark_uploads() override { uploads_ = true; } // only its uploads can be made to fail
    bool                  take_failure() override { return failed_.exchange(false); }
    size_t                bytes_per_copy() const override;

  private:
    void push(std::function<void()> operation);
    void compute(ggml_cgraph * graph);
    void take_memory(const ggml_cgraph * graph);
    void use_threads(int n);
    void work();

    SimulatedDevice & device_;
    std::atomic<bool> failed_{false};
    std::atomic<bool> uploads_{false};
    size_t            kernel_bytes_ = 0; // of the pool; only the thread that launches uses it
    // the record of the next launch; only the thread that launches uses it
    std::shared_ptr<Trace> trace_;
    Span                   span_;

    ggml_backend_t                    cpu_;
    ggml_threadpool *                 pool_      = nullptr; // the worker's threads
    int                               n_threads_ = 0;
    std::mutex                        mutex_;
    std::condition_variable           wake_, idle_;
    std::deque<std::function<void()>> queue_;
    std::atomic<size_t>               n_left_{0}; // operations that are queued or running
    bool                              stop_ = false;
    std::thread                       worker_; // the last member: it starts when the others are initialized
};

} // namespace spac
