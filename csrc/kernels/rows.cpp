// Multiplies rows by ggml's own functions, and keeps the variants that were chosen, for the whole process.
#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace spac::kernels {
namespace {

std::atomic<bool> on{true};

bool has(const Kernel & kernel, Variant variant) {
    return variant == Variant::ggml || kernel.dot[static_cast<size_t>(variant)] != nullptr;
}

// Threads that compute read the choice for a type in one go.
struct Kept {
    Choice choice;
    bool   known = false;
};
static_assert(std::atomic<Kept>::is_always_lock_free);

std::atomic<Kept> & kept(int type) {
    static std::array<std::atomic<Kept>, GGML_TYPE_COUNT> table{};
    return table[static_cast<size_t>(type)];
}

} // namespace

void multiply_by_pairs(const Rows & it, int type) {
    constexpr int64_t chunk   = 16; // rows of weights that stay in a cache for all rows of input
    const auto        vec_dot = ggml_get_type_traits_cpu(static_cast<ggml_type>(type))->vec_dot;
    for (int64_t first = 0; first < it.n_weights; first += chunk) {
        for (int64_t i = 0; i < it.n_inputs; i++) {
            for (int64_t row = first; row < std::min(first + chunk, it.n_weights); row++) {
                vec_dot(static_cast<int>(it.n), it.results[i] + row, 0,
                        it.weights + static_cast<size_t>(row) * it.stride, 0, it.inputs[i], 0, 1);
            }
        }
    }
}

Choice choice(int type) {
    Kept found = kept(type).load(std::memory_order_relaxed);
    if (!found.known) {
        const Kernel & kernel = trusted_kernel(type);
        const Variant  widest = has(kernel, Variant::two)   ? Variant::two
                                : has(kernel, Variant::one) ? Variant::one
                                                            : Variant::ggml;
        found                 = {{widest == Variant::two ? Variant::two : Variant::ggml, widest, false}, true};
        kept(type).store(found, std::memory_order_relaxed);
    }
    return found.choice;
}

void choose(int type, Choice wanted) {
    for (Variant * variant : {&wanted.one, &wanted.several}) {
        *variant = has(trusted_kernel(type), *variant) ? *variant : Variant::ggml;
    }
    kept(type).store({wanted, true}, std::memory_order_relaxed);
}

bool computes_dense(int type, int64_t n_inputs) {
    const Dense theirs = n_inputs > 1 ? dense_kernels(type) : Dense::none;
    return theirs == Dense::none || (theirs == Dense::equal && choice(type).dense);
}

void enable(bool yes) { on = yes; }
bool enabled() { return on.load(std::memory_order_relaxed); }

} // namespace spac::kernels
