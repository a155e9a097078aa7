
#include "backend/device/kernel_memory.h"
#include "backend/device/stream_gate.h"
#include "backend/simulated_device/simulated_device.h"
#include "core/not_copied.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace spac {
namespace {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// Polls for `spin_us` before the caller sleeps, as a GPU's driver does. Returns true if `done` came true. A sleeping
// thread takes 30 to 60 us to wake, and every MoE layer wakes two.
template <typename Done> bool spin(const SimulatedDevice & device, const Done & done) {
    static const bool alone = std::thread::hardware_concurrency() < 2;
    if (done() || alone) {
        return done();
    }
    const std::chrono::duration<double, std::micro> patience(device.settings().spin_us);
    const auto                                      end = std::chrono::steady_clock::now() + patience;
    do {
        for (int i = 0; i < 64; ++i) {
            if (done()) {
                return true;
            }
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

// A launched graph. Its nodes are copied when it is launched, as a GPU captures kernel arguments.
class Launch : NotCopied {
  public:
    explicit Launch(const ggml_cgraph * graph) {
        const auto n = static_cast<size_t>(graph->n_nodes);
        tensors_.reserve(n * (GGML_MAX_SRC + 1));
        nodes_.reserve(n);
        size_t size = 64;
        while (size < 4 * n) {
            size *= 2;
        }
        known_.resize(size);
        for (size_t i = 0; i < n; ++i) {
            ggml_tensor * node = capture(graph->nodes[i]);
            // sources need their shape and data, but not their own sources, which have run before
            for (ggml_tensor *& src : node->src) {
                src = src != nullptr ? capture(src) : nullptr;
            }
            nodes_.push_back(node);
        }
        known_ = {};
        // an empty hash set, in which no use counts are found
        graph_.size = graph_.n_nodes = graph->n_nodes;
        graph_.nodes                 = nodes_.data();
        graph_.visited_hash_set      = {1, &nothing_used_, &no_key_};
        graph_.order                 = graph->order;
    }

    ggml_cgraph * graph() { return &graph_; }

  private:
    ggml_tensor * capture(const ggml_tensor * t) {
        const size_t last = known_.size() - 1;
        size_t       i    = reinterpret_cast<uintptr_t>(t) / sizeof(ggml_tensor) & last;
        while (known_[i].first != nullptr && known_[i].first != t) {
            i = (i + 1) & last;
        }
        if (known_[i].first == nullptr) {
            if (++n_known_ * 2 > known_.size()) {
                return add(t); // a second copy of a source does no harm
            }
            known_[i] = {t, add(t)};
        }
        return known_[i].second;
    }
    ggml_tensor * add(const ggml_tensor * t) {
        tensors_.push_back(*t);
        return &tensors_.back();
    }

    std::vector<ggml_tensor>                                   tensors_; // reserved once, so pointers stay valid
    std::vector<ggml_tensor *>                                 nodes_;
    std::vector<std::pair<const ggml_tensor *, ggml_tensor *>> known_;
    size_t                                                     n_known_      = 0;
    ggml_bitset_t                                              nothing_used_ = 0;
    ggml_tensor *                                              no_key_       = nullptr;
    ggml_cgraph                                                graph_        = {};
};

// Copies over a device's link.
void transfer(SimulatedDevice & device, void * dst, const void * src, size_t size) {
    const double gb_s = device.settings().upload_gb_s;
    if (gb_s > 0) { // the bytes come after the time, so a reader that is too early does not find them
        std::this_thread::sleep_until(device.end_on_link(size, gb_s));
    }
    memcpy(dst, src, size);
}

} // namespace

// ---- events

void SimulatedEvent::reach(uint64_t n) {
    const std::lock_guard lock(mutex_); // one stream's records are reached in order, but another stream's may be later
    reached_ = std::max(reached_.load(), n);
    changed_.notify_all();
}

void SimulatedEvent::wait(uint64_t n) {
    const auto done = [&] { return reached_ >= n; };
    if (!spin(device_, done)) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, done);
    }
}

bool SimulatedEvent::wait_patiently(uint64_t n) {
    const auto done = [&] { return reached_ >= n; };
    if (spin(device_, done)) {
        return true;
    }
    std::unique_lock lock(mutex_);
    for (Patience patience; !changed_.wait_for(lock, Patience::look, done);) {
        if (patience.over()) {
            return false;
        }
    }
    return true;
}

// ---- the queue

SimulatedStream::SimulatedStream(SimulatedDevice & device)
    : device_(device), cpu_(ggml_backend_cpu_init()), worker_([this] { work(); }) {}

SimulatedStream::~SimulatedStream() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        wake_.notify_all();
    }
    worker_.join();
    device_.memory_used -= kernel_bytes_;
    count_kernel_memory(device_.handle(), -static_cast<ptrdiff_t>(kernel_bytes_));
    ggml_backend_free(cpu_);
    if (pool_ != nullptr) {
        ggml_threadpool_free(pool_);
    }
}

void SimulatedStream::push(std::function<void()> operation) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
    ++n_left_;
    wake_.notify_all();
}

void SimulatedStream::write(void * dst, const void * data, size_t size) {
    push([this, dst, data, size] {
        if (uploads_ && device_.fail_upload()) {
            failed_ = true;
            memset(dst, 0xff, size); // a failed copy leaves garbage
            return;
        }
        transfer(device_, dst, data, size);
    });
}

void SimulatedStream::read(const void * src, void * data, size_t size) {
    push([src, data, size] { memcpy(data, src, size); });
}

void SimulatedStream::copy(void * dst, const void * src, size_t size, SimulatedDevice * other) {
    push([dst, src, size, other] {
        other != nullptr ? transfer(*other, dst, src, size) : void(memcpy(dst, src, size));
    });
}

ggml_status SimulatedStream::launch(const ggml_cgraph * graph) {
    if (failed_.exchange(false)) {
        return GGML_STATUS_FAILED;
    }
    take_memory(graph);
    auto captured = std::make_shared<Launch>(graph);
    if (trace_ != nullptr) {
        push([this, captured, trace = std::exchange(trace_, nullptr), span = span_]() mutable {
            span.start_ns = Trace::now();
            compute(captured->graph());
            span.end_ns = Trace::now();
            trace->add(span);
        });
    } else {
        push([this, captured] { compute(captured->graph()); });
    }
    return GGML_STATUS_SUCCESS;
}

// Lets the stream's pool grow to what a launch takes. It never shrinks.
void SimulatedStream::take_memory(const ggml_cgraph * graph) {
    const double share = device_.settings().kernel_share;
    size_t       most  = 0;
    for (int i = 0; share > 0 && i < graph->n_nodes; ++i) {
        most = std::max(most, ggml_nbytes(graph->nodes[i]));
    }
    const auto wanted = static_cast<size_t>(share * static_cast<double>(most));
    if (wanted <= kernel_bytes_) {
        return;
    }
    const size_t more = wanted - kernel_bytes_;
    if (!device_.take(more)) {
        refuse_kernels(device_.handle(), more);
    }
    kernel_bytes_ = wanted;
    count_kernel_memory(device_.handle(), static_cast<ptrdiff_t>(more));
}

void SimulatedStream::record(const SimulatedEventPtr & event) { reach(event, event->record()); }

void SimulatedStream::wait(const SimulatedEventPtr & event) {
    if (device_.settings().fault != SimulatedFault::unordered) {
        wait(event, event->last());
    }
}

void SimulatedStream::reach(const SimulatedEventPtr & event, uint64_t n) {
    push([event, n] { event->reach(n); });
}

void SimulatedStream::wait(const SimulatedEventPtr & event, uint64_t n) {
    push([event, n] { event->wait(n); });
}

void SimulatedStream::synchronize() {
    const auto done = [&] { return n_left_ == 0; };
    if (uploads_ || !spin(device_, done)) {
        std::unique_lock lock(mutex_);
        idle_.wait(lock, done);
    }
}

void SimulatedStream::record_launch(std::shared_ptr<Trace> trace, const Span & span) {
    trace_ = std::move(trace);
    span_  = span;
}

size_t SimulatedStream::bytes_per_copy() const {
    const SimulatedSettings s = device_.settings();
    return static_cast<size_t>(s.latency_us * s.upload_gb_s * 1e3);
}

// ---- the gate

namespace {

class SimulatedGate : public Gate {
  public:
    explicit SimulatedGate(SimulatedStream & stream) : stream_(stream) {}
    void queue_signal(uint64_t n) override {
        if (stream_.device().settings().fault != SimulatedFault::no_signal) {
            stream_.reach(signals_, n);
        }
    }
    void queue_wait(uint64_t n) override {
        const SimulatedFault fault = stream_.device().settings().fault;
        stream_.wait(openings_,
                     fault == SimulatedFault::dead ? n + for_good + 1 : n); // a dead device's gate never opens
        while (fault == SimulatedFault::slow_queue && openings_->reached() <= n) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    void await_signal(uint64_t n) override {
        if (!signals_->wait_patiently(n)) {
            throw Overdue("the simulated device did not signal");
        }
    }
    void open(uint64_t n) override { openings_->reach(n); }

    uint32_t signalled() const override { return static_cast<uint32_t>(signals_->reached()); }
    uint32_t opened() const override { return static_cast<uint32_t>(openings_->reached()); }

  private:
    SimulatedStream & stream_;
    SimulatedEventPtr signals_  = std::make_shared<SimulatedEvent>(stream_.device());
    SimulatedEventPtr openings_ = std::make_shared<SimulatedEvent>(stream_.device());
};

} // namespace

std::unique_ptr<Gate> SimulatedStream::make_gate() { return std::make_unique<SimulatedGate>(*this); }

// ---- the worker

void SimulatedStream::compute(ggml_cgraph * graph) {
    use_threads(std::max(1, device_.settings().n_threads));
    if (ggml_backend_graph_compute(cpu_, graph) != GGML_STATUS_SUCCESS) {
        failed_ = true;
    }
}

void SimulatedStream::use_threads(int n) {
    if (n != n_threads_) { // without a kept pool, ggml makes and ends one at every launch
        ggml_threadpool_params params = ggml_threadpool_params_default(n);
        params.poll                   = 0;
        ggml_threadpool * pool        = ggml_threadpool_new(&params);
        ggml_backend_cpu_set_threadpool(cpu_, pool);
        ggml_backend_cpu_set_n_threads(cpu_, n);
        if (pool_ != nullptr) {
            ggml_threadpool_free(pool_);
        }
        pool_      = pool;
        n_threads_ = n;
    }
}

void SimulatedStream::work() {
    std::minstd_rand random(std::random_device{}());
    while (true) {
        if (!uploads_) { // no thread waits for copies into slots
            spin(device_, [&] { return n_left_ > 0; });
        }
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        auto operation = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        const SimulatedSettings s  = device_.settings();
        double                  us = uploads_ ? 0 : s.latency_us;
        if (s.delay_us > 0) {
            us += std::uniform_real_distribution<double>(0, s.delay_us)(random);
        }
        if (us > 0) {
            std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us));
        }
        operation();
        operation = nullptr;
        lock.lock();
        if (--n_left_ == 0) {
            idle_.notify_all();
        }
    }
}

} // namespace spac
