#include "backend/split/lane.h"

#include "backend/device/ggml_internals.h"
#include "backend/device/timer.h"
#include "backend/split/early_rows.h"
#include "backend/split/thread_pool.h"
#include "core/error.h"
#include "ggml-cpu.h"

namespace spac {

struct Lane::Parts {
    explicit Parts(int n_threads) : pool(n_threads, 1), cpu(ggml_backend_cpu_init()) {}

    ThreadPool       pool; // outlives the backend that computes with it
    ggml_backend_ptr cpu;
    EarlyRows        early_rows;
};

Lane::Lane(int n_threads) : parts_(std::make_unique<Parts>(n_threads)) {
    if (!parts_->cpu) {
        throw DeviceError("the CPU backend could not be started");
    }
    ggml_backend_cpu_set_threadpool(parts_->cpu.get(), parts_->pool.get());
    ggml_backend_cpu_set_n_threads(parts_->cpu.get(), n_threads);
}

Lane::~Lane() = default;

std::pair<size_t, double> Lane::run(const std::vector<std::pair<uintptr_t, size_t>> & ranges, double wait_s,
                                    uintptr_t graph) {
    std::vector<EarlyRows::Range> rows;
    for (const auto & [at, size] : ranges) {
        rows.push_back({reinterpret_cast<const char *>(at), size});
    }
    const auto   wait_ns = static_cast<int64_t>(wait_s * 1e9);
    const auto   start   = Clock::now();
    const auto   arrived = [&] { return ns_since(start) >= wait_ns; };
    const size_t n_read  = parts_->early_rows.read(parts_->cpu.get(), rows, arrived);
    while (!arrived()) {
    }
    const auto begun = Clock::now();
    if (ggml_backend_graph_compute(parts_->cpu.get(), reinterpret_cast<ggml_cgraph *>(graph)) != GGML_STATUS_SUCCESS) {
        throw DeviceError("the graph failed");
    }
    return {n_read, static_cast<double>(ns_since(begun)) * 1e-9};
}

} // namespace spac
