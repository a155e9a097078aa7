// Counts of calls by kind, stream and thread, and of misuse.
//
// A thread counts in a table of its own, so that counting costs nanoseconds. The report sums the tables up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pretend {

enum class Kind {
    kernel,       // launches, also captured ones
    graph_kernel, // kernels inside launched graphs
    graph_launch,
    graph_capture,
    graph_instantiate,
    graph_update,
    copy_to_device,
    copy_to_host,
    copy_on_device,
    pageable_to_device, // those copies from memory that is not pinned; a card's driver copies it before it returns
    pageable_to_host,   // those copies into such memory; a card's driver waits for the stream
    fill,
    event_record,
    event_wait,        // a stream waits
    event_synchronize, // the host waits, also in the following kinds
    event_query,
    stream_synchronize,
    device_synchronize,
    write_value,
    wait_value,
    cublas,
    device_alloc,
    device_free,
    host_alloc,
    host_free,
    host_register,
    host_unregister,
    stream_create,
    event_create,
    count,
};

constexpr int legacy_stream = 0, per_thread_stream = 1, max_streams = 64;

void count(Kind kind, int stream, size_t bytes = 0, int64_t wait_ns = 0, size_t n = 1, const char * what = "");

// Notes a misuse that fails on a card. The parameters are those of printf.
[[gnu::format(printf, 1, 2)]] void misuse(const char * format, ...);

// Returns JSON: {"calls": [{"thread", "stream", "kind", "calls", "bytes", "wait_ns"}, …], "kernels": {name: launches},
// "misuse": [text, …]}
std::string report();

// Names kernels for the report, and adds up their launches.
struct KernelCount;
KernelCount * kernel_count(const std::string & name);
void          add_launch(KernelCount * kernel);

} // namespace pretend
