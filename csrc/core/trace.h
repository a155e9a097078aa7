// Records a timeline: what was done when, as spans of monotonic time.
//
// Recording is off unless somebody looks. While it is off, a place that could record costs one load and one branch.
// While it is on, a span costs a mutex that is held for one store. Memory is reserved at the start. Spans that come
// when it is full are counted and dropped; the earlier ones stay. Any thread may call anything.
#pragma once

#include "core/not_copied.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace spac {

// The activity that a span shows. The comments name the fields that it fills in; the others are -1, and bytes is 0.
enum class Activity : int32_t {
    prefill,      // count: tokens
    draft,        // count: tokens drafted
    verify,       // count: tokens verified
    observe,      // the scheduler and the governor hear of a finished step
    sample,       // count: draft tokens accepted
    layer,        // one MoE block on the thread that decodes; layer, count: tokens
    host_wait,    // the wait for a block's ids and input; layer
    host_experts, // a block's experts on the CPU; layer, count: (token, expert) pairs, distinct: experts
    device_part,  // a block's experts on the device; layer, ok: 1 measured there, 0 from the launch to the seen end
    copy,         // an expert on its way into a slot; layer, expert, pool, bytes, ok. Each expert of a batch
                  // has a span, from the batch's start to its end.
    evict,        // no duration; layer, expert, pool
    fill,         // a matrix of all experts of a layer is put together on the device, for a large batch; layer,
                  // bytes: over the link, ok as in device_part
};
constexpr const char * activity_names[] = {"prefill",   "draft",        "verify",      "observe", "sample", "layer",
                                           "host_wait", "host_experts", "device_part", "copy",    "evict",  "fill"};

struct Span {
    int64_t  start_ns = 0; // by std::chrono::steady_clock
    int64_t  end_ns   = 0;
    int64_t  bytes    = 0;
    Activity activity = Activity::prefill;
    int32_t  layer    = -1;
    int32_t  expert   = -1;
    int32_t  pool     = -1;
    int32_t  count    = -1;
    int32_t  distinct = -1;
    int32_t  ok       = -1; // 1 yes, 0 no
    int32_t  unused   = 0;
};

class Trace {
  public:
    static constexpr size_t default_capacity = size_t{1} << 20;

    // Returns the present time, for a span's ends.
    static int64_t now() noexcept {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    bool on() const noexcept { return on_.load(std::memory_order_relaxed); }

    // Records from now on, at most `capacity` spans between two calls of take(). Forgets earlier spans.
    void start(size_t capacity) {
        std::vector<Span> room;
        room.reserve(capacity);
        const std::lock_guard lock(mutex_);
        spans_.swap(room);
        capacity_ = capacity;
        dropped_  = 0;
        on_.store(true, std::memory_order_relaxed);
    }

    // Stops recording. What was recorded stays until it is taken.
    void stop() noexcept { on_.store(false, std::memory_order_relaxed); }

    void add(const Span & span) noexcept {
        if (!on()) {
            return;
        }
        const std::lock_guard lock(mutex_);
        if (spans_.size() < capacity_) {
            spans_.push_back(span); // within what start() reserved: no allocation
        } else {
            ++dropped_;
        }
    }

    // Returns the spans recorded since the last call, in the order in which they ended.
    std::vector<Span> take() {
        std::vector<Span> room;
        if (on()) {
            room.reserve(capacity_of());
        }
        const std::lock_guard lock(mutex_);
        spans_.swap(room);
        capacity_ = spans_.capacity();
        return room;
    }

    size_t size() const {
        const std::lock_guard lock(mutex_);
        return spans_.size();
    }
    // Returns how many spans found no place since start().
    uint64_t dropped() const {
        const std::lock_guard lock(mutex_);
        return dropped_;
    }

  private:
    size_t capacity_of() const {
        const std::lock_guard lock(mutex_);
        return capacity_;
    }

    std::atomic<bool>  on_{false};
    mutable std::mutex mutex_;
    std::vector<Span>  spans_;
    size_t             capacity_ = 0;
    uint64_t           dropped_  = 0;
};

// Records the scope that it lives in, if recording was on when it began. The span's fields are filled in while it
// lives.
class SpanScope : NotCopied {
  public:
    SpanScope(Trace & trace, Activity activity, int layer = -1) : trace_(trace.on() ? &trace : nullptr) {
        if (trace_ != nullptr) {
            span.activity = activity;
            span.layer    = layer;
            span.start_ns = Trace::now();
        }
    }
    ~SpanScope() {
        if (trace_ != nullptr) {
            span.end_ns = Trace::now();
            trace_->add(span);
        }
    }

    Span span;

  private:
    Trace * trace_;
};

} // namespace spac
