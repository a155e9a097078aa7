#include "backend/experts/counters.h"

namespace spac {

void Counters::add_to(ExpertStats & stats) const {
    stats.blocks            = blocks;
    stats.blocks_device     = blocks_device;
    stats.blocks_host       = blocks_host;
    stats.uploads           = uploads;
    stats.upload_bytes      = upload_bytes;
    stats.upload_failures   = upload_failures;
    stats.upload_ns         = upload_ns;
    stats.evictions         = evictions;
    stats.host_waits        = host_waits;
    stats.host_wait_ns      = host_wait_ns;
    stats.host_compute_ns   = host_compute_ns;
    stats.download_bytes    = download_bytes;
    stats.join_bytes        = join_bytes;
    stats.blocks_streamed   = blocks_streamed;
    stats.stream_bytes      = stream_bytes;
    stats.stream_slot_bytes = stream_slot_bytes;
    stats.stream_ring_bytes = stream_ring_bytes;
    stats.blocks_exchanged  = blocks_exchanged;
    stats.graphs_prepared   = graphs_prepared;
    stats.graph_ns          = graph_ns;
    stats.queue_ns          = queue_ns;
    stats.ahead_ns          = ahead_ns;
    stats.load_bytes        = load_bytes;
    stats.load_ns           = load_ns;
}

} // namespace spac
