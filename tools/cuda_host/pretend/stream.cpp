#include "stream.h"

#include "settings.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

namespace pretend {
namespace {

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void sleep_until(int64_t ns) {
    constexpr int64_t short_ns = 80000; // a shorter wait is not worth a sleep
    for (int64_t left = ns - now_ns(); left > 0; left = ns - now_ns()) {
        if (left > short_ns) {
            std::this_thread::sleep_for(std::chrono::nanoseconds(left - short_ns / 2));
        } else {
            std::this_thread::yield();
        }
    }
}

template <typename F> void wait_until(const F & ready) {
    for (int i = 0; !ready(); ++i) {
        if (i < 100) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
}

void execute(const Operation & operation) {
    for (const RangePtr & range : operation.touches) {
        if (range->gone) {
            misuse("an operation reads or writes memory that was freed or unregistered before it ran (%s)",
                   range->where == Range::Where::device ? "device" : "host");
        }
    }
    if (operation.run) {
        operation.run();
    }
}

} // namespace

void Stream::push(Operation operation) {
    if (capture != nullptr) {
        capture->operations.push_back(std::move(operation));
        return;
    }
    for (const RangePtr & range : operation.touches) {
        ++range->in_use;
    }
    const std::lock_guard lock(mutex_);
    if (!works_) {
        works_ = true;
        std::thread([me = shared_from_this()] { me->work(); }).detach(); // lives as long as it has work
    }
    queue_.push_back(std::move(operation));
    ++pushed_;
    wake_.notify_one();
}

void Stream::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        wake_.wait(lock, [&] { return stops_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        Operation & operation = queue_.front(); // stays in the queue until it is over
        lock.unlock();
        if (operation.ready) {
            wait_until(operation.ready);
        }
        busy_until_ = std::max(busy_until_, now_ns() - 100000) + operation.cost_ns;
        if (operation.cost_ns > 0) {
            sleep_until(busy_until_);
        }
        execute(operation);
        for (const RangePtr & range : operation.touches) {
            --range->in_use;
        }
        lock.lock();
        queue_.pop_front();
        ++done_;
    }
}

void Stream::synchronize() {
    wait_until([&, last = pushed_.load()] { return done_ >= last; });
}

void Stream::stop() {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    wake_.notify_one();
}

std::function<void()> Event::record() {
    return [reached = reached_, n = ++recorded_] { *reached = std::max<uint64_t>(*reached, n); };
}

std::function<bool()> Event::passed() const {
    return [reached = reached_, n = recorded_.load()] { return *reached >= n; };
}

void Event::synchronize() { wait_until(passed()); }

// ---- handles

namespace {

auto & driver_mutex = *new std::mutex;

thread_local int card_of_thread = 0;

} // namespace

// They are never destroyed, because threads may outlive main().
Table<Stream> & streams = *new Table<Stream>("a stream");
Table<Event> &  events  = *new Table<Event>("an event");

int  current_card() { return card_of_thread; }
void set_current_card(int card) { card_of_thread = card; }

void wait_implicitly(bool surely) {
    static std::atomic<int> n_calls{0};
    if (settings().implicit > 0 && (surely || ++n_calls % settings().implicit == 0)) {
        const std::lock_guard lock(driver_mutex);
        for (const StreamPtr & stream : streams.all()) {
            stream->synchronize();
        }
    }
}

StreamPtr stream_of(cudaStream_t handle) {
    using Defaults               = std::array<StreamPtr, max_cards>;
    static auto &         legacy = *new Defaults;
    thread_local Defaults mine;
    if (settings().implicit > 0) {
        const std::lock_guard lock(driver_mutex); // after the call that waits
    }
    const bool is_mine = handle == cudaStreamPerThread;
    if (!is_mine && handle != nullptr && handle != cudaStreamLegacy) {
        return streams.find(handle);
    }
    static auto &         mutex = *new std::mutex;
    const std::lock_guard lock(mutex);
    StreamPtr &           stream = (is_mine ? mine : legacy).at(static_cast<size_t>(current_card()));
    if (stream == nullptr) {
        stream = streams.add(std::make_shared<Stream>(is_mine ? per_thread_stream : legacy_stream, current_card()));
    }
    return stream;
}

Operation sequence(const std::shared_ptr<const std::vector<Operation>> & operations) {
    Operation whole = {Kind::graph_launch};
    for (const Operation & operation : *operations) {
        whole.cost_ns += operation.cost_ns;
    }
    whole.run = [operations] {
        for (const Operation & operation : *operations) {
            if (operation.ready) {
                wait_until(operation.ready);
            }
            execute(operation);
        }
    };
    return whole;
}

} // namespace pretend
