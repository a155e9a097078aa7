// The simulated device's streams: each a queue and a worker thread that takes from it in order, with the delays of the
// settings.
//
// Operations hold events and captured graphs by shared pointers: freeing an event under way is safe, as it is on a GPU.
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

class SimulatedEvent {
  public:
    uint64_t record() { return ++recorded_; }
    uint64_t last() const { return recorded_; }
    void     reach(uint64_t n);
    void     wait(uint64_t n);
    // The same, with the deadline of a gate: whether it was reached.
    bool     wait_patiently(uint64_t n);
    uint64_t reached() const { return reached_; }

  private:
    std::mutex              mutex_;
    std::condition_variable changed_;
    std::atomic<uint64_t>   recorded_{0}; // number of the last record that was asked for
    std::atomic<uint64_t>   reached_{0};  // number of the last record that its stream has passed
};

using SimulatedEventPtr = std::shared_ptr<SimulatedEvent>;

class SimulatedStream : public StreamExtension {
  public:
    SimulatedStream();
    ~SimulatedStream() override; // what is queued is done first
    SimulatedStream(const SimulatedStream &)             = delete;
    SimulatedStream & operator=(const SimulatedStream &) = delete;

    // Queued; a copy reads and writes host memory late. `data`: the host's side.
    void write(void * dst, const void * data, size_t size);
    void read(const void * src, void * data, size_t size);
    void copy(void * dst, const void * src, size_t size); // inside the device
    void record(const SimulatedEventPtr & event);
    void wait(const SimulatedEventPtr & event); // for the record that was the last when this was called
    // The same with numbers of the caller's: a gate's.
    void reach(const SimulatedEventPtr & event, uint64_t n);
    void wait(const SimulatedEventPtr & event, uint64_t n);
    // Fails when an operation before it has.
    ggml_status launch(const ggml_cgraph * graph);

    void synchronize();

    std::unique_ptr<Gate> make_gate() override;
    void                  call(std::function<void()> what) override { push(std::move(what)); }
    void                  record_launch(std::shared_ptr<Trace> trace, const Span & span) override;
    void                  mark_uploads() override { uploads_ = true; } // injected failures strike there only
    bool                  take_failure() override { return failed_.exchange(false); }
    size_t                bytes_per_copy() const override;

  private:
    void push(std::function<void()> operation);
    void compute(ggml_cgraph * graph);
    void use_threads(int n);
    void work();

    std::atomic<bool> failed_{false};
    std::atomic<bool> uploads_{false};
    // what the next launch is recorded as; of the thread that launches
    std::shared_ptr<Trace> trace_;
    Span                   span_;

    ggml_backend_t                    cpu_;
    ggml_threadpool *                 pool_      = nullptr; // the worker's
    int                               n_threads_ = 0;
    std::mutex                        mutex_;
    std::condition_variable           wake_, idle_;
    std::deque<std::function<void()>> queue_;
    std::atomic<size_t>               n_left_{0}; // queued, or at work
    bool                              stop_ = false;
    std::thread                       worker_; // last: starts when the rest is there
};

} // namespace spac
