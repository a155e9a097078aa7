#include "stream.h"

#include "settings.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <shared_mutex>
#include <thread>

namespace pretend {

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

namespace {

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

void wait_until(const std::function<bool()> & ready) {
    for (int i = 0; !ready(); ++i) {
        if (i < 100) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
}

void check_alive(const Operation & operation) {
    for (const RangePtr & range : operation.touches) {
        if (range->gone) {
            misuse("an operation reads or writes memory that was freed or unregistered before it ran (%s)",
                   range->where == Range::Where::device ? "device" : "host");
        }
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
        std::thread([me = self.lock()] { me->work(); }).detach(); // lives as long as it has work
    }
    queue_.push_back(std::move(operation));
    ++pushed_;
    if (queue_.size() == 1) {
        wake_.notify_one();
    }
}

void Stream::execute(const Operation & operation) {
    check_alive(operation);
    if (operation.run) {
        operation.run();
    }
    for (const RangePtr & range : operation.touches) {
        --range->in_use;
    }
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
        lock.lock();
        queue_.pop_front();
        ++done_;
        over_.notify_all();
    }
}

void Stream::synchronize() {
    std::unique_lock lock(mutex_);
    const uint64_t   last = pushed_;
    over_.wait(lock, [&] { return done_ >= last; });
}

void Stream::stop() {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    wake_.notify_one();
}

std::function<void()> Event::record() {
    const uint64_t n = ++recorded_;
    return [state = state_, n] {
        const std::lock_guard lock(state->mutex);
        state->reached = std::max<uint64_t>(state->reached, n);
        state->changed.notify_all();
    };
}

std::function<bool()> Event::passed() const {
    return [state = state_, n = recorded_.load()] { return state->reached >= n; };
}

void Event::synchronize() {
    const uint64_t   n = recorded_;
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->reached >= n; });
}

// ---- handles

namespace {

struct Handles {
    std::shared_mutex                 mutex;
    std::map<const void *, StreamPtr> streams;
    std::map<const void *, EventPtr>  events;
    int                               n_streams = per_thread_stream + 1;
};

Handles & handles() {
    static auto * one = new Handles;
    return *one;
}

std::mutex & driver_mutex() {
    static auto * one = new std::mutex;
    return *one;
}

StreamPtr make_stream(int number, int card) {
    auto stream  = std::make_shared<Stream>(number, card);
    stream->self = stream;
    return stream;
}

// Returns a default stream, which is made at the first request.
StreamPtr default_stream(StreamPtr & stream, int number, size_t card) {
    const std::lock_guard lock(handles().mutex);
    if (stream == nullptr) {
        stream                          = make_stream(number, static_cast<int>(card));
        handles().streams[stream.get()] = stream;
    }
    return stream;
}

thread_local int card_of_thread = 0;

} // namespace

int  current_card() { return card_of_thread; }
void set_current_card(int card) { card_of_thread = card; }

void wait_implicitly(bool surely) {
    static std::atomic<int> n_calls{0};
    if (settings().implicit > 0 && (surely || ++n_calls % settings().implicit == 0)) {
        const std::lock_guard lock(driver_mutex());
        for (const StreamPtr & stream : all_streams()) {
            stream->synchronize();
        }
    }
}

StreamPtr stream_of(cudaStream_t handle) {
    if (settings().implicit > 0) {
        const std::lock_guard lock(driver_mutex()); // after the call that waits
    }
    const auto card = static_cast<size_t>(current_card());
    if (handle == cudaStreamPerThread) {
        thread_local std::array<StreamPtr, max_cards> mine;
        return default_stream(mine.at(card), per_thread_stream, card);
    }
    if (handle == nullptr || handle == cudaStreamLegacy) {
        static auto * legacy = new std::array<StreamPtr, max_cards>;
        return default_stream(legacy->at(card), legacy_stream, card);
    }
    const std::shared_lock lock(handles().mutex);
    const auto             found = handles().streams.find(handle);
    if (found == handles().streams.end()) {
        misuse("a call with a stream that does not exist, or no more");
        return nullptr;
    }
    return found->second;
}

cudaStream_t add_stream() {
    const std::lock_guard lock(handles().mutex);
    const int             number    = std::min(handles().n_streams++, max_streams - 1);
    const StreamPtr       stream    = make_stream(number, current_card());
    handles().streams[stream.get()] = stream;
    return reinterpret_cast<cudaStream_t>(stream.get());
}

bool remove_stream(cudaStream_t handle) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr) {
        return false;
    }
    stream->stop();
    const std::lock_guard lock(handles().mutex);
    handles().streams.erase(handle);
    return true;
}

std::vector<StreamPtr> all_streams() {
    const std::shared_lock lock(handles().mutex);
    std::vector<StreamPtr> all;
    for (const auto & [handle, stream] : handles().streams) {
        all.push_back(stream);
    }
    return all;
}

EventPtr event_of(cudaEvent_t handle) {
    const std::shared_lock lock(handles().mutex);
    const auto             found = handles().events.find(handle);
    if (found == handles().events.end()) {
        misuse("a call with an event that does not exist, or no more");
        return nullptr;
    }
    return found->second;
}

cudaEvent_t add_event() {
    const std::lock_guard lock(handles().mutex);
    const auto            event   = std::make_shared<Event>(current_card());
    handles().events[event.get()] = event;
    return reinterpret_cast<cudaEvent_t>(event.get());
}

bool remove_event(cudaEvent_t handle) {
    if (event_of(handle) == nullptr) {
        return false;
    }
    const std::lock_guard lock(handles().mutex);
    return handles().events.erase(handle) > 0;
}

Operation sequence(const std::shared_ptr<const std::vector<Operation>> & operations) {
    Operation whole;
    whole.kind = Kind::graph_launch;
    for (const Operation & operation : *operations) {
        whole.cost_ns += operation.cost_ns;
    }
    whole.run = [operations] {
        for (const Operation & operation : *operations) {
            check_alive(operation);
            if (operation.ready) {
                wait_until(operation.ready);
            }
            if (operation.run) {
                operation.run();
            }
        }
    };
    return whole;
}

} // namespace pretend
