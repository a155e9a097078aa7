// The simulated device's streams. Each is a queue with a worker thread, which runs the operations in order, with the
// delays of the settings.
//
// Operations hold events and captured graphs by shared pointers, so an event in use may be freed, as on a GPU.
#pragma once

#include "backend/device/capabilities.h"
#include "backend/device/ggml_internals.h"
#include "core/trace.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace spac {

class SimulatedDevice;

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

class SimulatedStream : public StreamExtension {
  public:
    explicit SimulatedStream(SimulatedDevice & device);
    ~SimulatedStream() override; // runs all queued operations first
    SimulatedStream(const SimulatedStream &)             = delete;
    SimulatedStream & operator=(const SimulatedStream &) = delete;

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
    void use_threads(int n);
    void work();

    SimulatedDevice & device_;
    std::atomic<bool> failed_{false};
    std::atomic<bool> uploads_{false};
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
