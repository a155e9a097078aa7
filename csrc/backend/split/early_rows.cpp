#include "backend/split/early_rows.h"

#include "core/error.h"

#include <algorithm>

namespace spac {
namespace {

constexpr size_t line    = 64;   // bytes that a cache reads at once
constexpr size_t at_once = 4096; // bytes between two looks at the signal: about 1 us

} // namespace

EarlyRows::EarlyRows() {
    const size_t size = 4 * ggml_tensor_overhead() + ggml_graph_overhead_custom(1, false) + 1024;
    ctx_.reset(ggml_init({size, nullptr, false}));
    if (!ctx_) {
        throw MemoryError("no memory for a graph of one node");
    }
    ggml_tensor * in  = ggml_new_tensor_1d(ctx_.get(), GGML_TYPE_F32, 1);
    ggml_tensor * out = ggml_map_custom1(ctx_.get(), in, &read_part, GGML_N_TASKS_MAX, this);
    graph_            = ggml_new_graph_custom(ctx_.get(), 1, false);
    ggml_build_forward_expand(graph_, out);
}

size_t EarlyRows::read(ggml_backend_t cpu, const std::vector<Range> & ranges, const std::function<bool()> & arrived) {
    if (ranges.empty() || arrived()) {
        return 0;
    }
    ranges_  = &ranges;
    arrived_ = &arrived;
    n_read_  = 0;
    ggml_backend_graph_compute(cpu, graph_);
    return n_read_;
}

// Reads one thread's part of every range.
void EarlyRows::read_part(ggml_tensor * /*out*/, const ggml_tensor * /*in*/, int ith, int nth, void * early_rows) {
    auto &       self = *static_cast<EarlyRows *>(early_rows);
    const auto   i = static_cast<size_t>(ith), n = static_cast<size_t>(nth);
    size_t       n_read = 0;
    const auto & ranges = *self.ranges_;
    std::all_of(ranges.begin(), ranges.end(), [&](const Range & range) {
        const char * const end = range.begin + range.size * (i + 1) / n;
        for (const char * at = range.begin + range.size * i / n; at < end;) {
            if ((*self.arrived_)()) {
                return false;
            }
            const char * const stop = std::min(end, at + at_once);
            for (const char * each = at; each < stop; each += line) {
                static_cast<void>(*static_cast<const volatile char *>(each));
            }
            n_read += static_cast<size_t>(stop - at);
            at = stop;
        }
        return true;
    });
    self.n_read_ += n_read;
}

} // namespace spac
