// Counts of calls by kind and stream, of launches by kernel, and of misuse.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace pretend {

// `kernel` has launches, also captured ones. The pageable copies are those from or to memory that is not pinned: a
// card's driver copies it before it returns, or waits for the stream. In `event_wait` a stream waits, and in the
// synchronizing kinds the host does.
#define PRETEND_KINDS                                                                                                  \
    kernel, graph_launch, graph_capture, graph_instantiate, graph_update, copy_to_device, copy_to_host,                \
        copy_on_device, pageable_to_device, pageable_to_host, fill, event_record, event_wait, event_synchronize,       \
        event_query, stream_synchronize, device_synchronize, write_value, wait_value, cublas, device_alloc,            \
        device_free, host_alloc, host_free, host_register, host_unregister, stream_create, event_create
enum class Kind { PRETEND_KINDS, count };

constexpr int legacy_stream = 0, per_thread_stream = 1, max_streams = 64;

void count(Kind kind, int stream = legacy_stream, size_t n = 1);

// Notes a misuse that fails on a card. The parameters are those of printf.
[[gnu::format(printf, 1, 2)]] void misuse(const char * format, ...);

// Returns the number of launches of the kernels with that name. The report has those that are not 0.
std::atomic<uint64_t> & launches(const std::string & name);

} // namespace pretend
