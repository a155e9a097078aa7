// Counters of the work of a model's streams and its reconciler. Any thread may add to them. experts.h describes each.
#pragma once

#include "backend/experts/experts.h"

#include <atomic>
#include <cstdint>

namespace spac {

struct Counters {
    std::atomic<uint64_t> blocks{0}, blocks_device{0}, blocks_host{0};
    std::atomic<uint64_t> uploads{0}, upload_bytes{0}, upload_failures{0}, upload_ns{0}, evictions{0};
    std::atomic<uint64_t> host_waits{0}, host_wait_ns{0}, host_compute_ns{0}, download_bytes{0}, join_bytes{0};
    std::atomic<uint64_t> graphs_prepared{0}, graph_ns{0}, queue_ns{0}, ahead_ns{0};
    std::atomic<uint64_t> load_bytes{0}, load_ns{0};
    std::atomic<uint64_t> blocks_streamed{0}, stream_bytes{0}, stream_slot_bytes{0};
    std::atomic<uint64_t> stream_ring_bytes{0}, blocks_exchanged{0};

    void add_to(ExpertStats & stats) const; // fills in the fields that are counted here
};

} // namespace spac
