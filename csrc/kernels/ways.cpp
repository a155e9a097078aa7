// Keeps the ways that were chosen, for the whole process.
#include "kernels/dense.h"
#include "kernels/rows.h"

#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace spac::kernels {
namespace {

// Returns SPAC_CPU_KERNELS (spac/env.py), which is read once.
std::string setting() {
    const char * choice = std::getenv("SPAC_CPU_KERNELS");
    return choice == nullptr ? "" : choice;
}

std::atomic<bool> on{setting() != "0"};

// Returns the kernel's function for the width that the user has fixed, or null.
const Dot * fixed(const Kernel & kernel) {
    static const std::string text = setting();
    if (text == "256") {
        return &kernel.dot[static_cast<size_t>(Way::one)];
    }
    return text == "512" ? &kernel.dot[static_cast<size_t>(Way::two)] : nullptr;
}

bool has(const Kernel & kernel, Way way) { return way == Way::ggml || kernel.dot[static_cast<size_t>(way)] != nullptr; }

Ways before_any_choice(const Kernel & kernel) {
    Ways ways;
    ways.fill(has(kernel, Way::two) ? Way::two : has(kernel, Way::one) ? Way::one : Way::ggml);
    if (ways[0] == Way::one) {
        ways[0] = Way::ggml;
    }
    return ways;
}

// The choice for one type is packed, two bits for each way and then one for each number of rows of a dense matrix, so
// that threads that compute read it in one go.
constexpr uint32_t none       = ~0U;
constexpr size_t   dense_bits = 2 * max_inputs;

uint32_t packed(const Ways & ways, const DenseRows & dense) {
    uint32_t bits = 0;
    for (size_t i = 0; i < ways.size(); i++) {
        bits |= static_cast<uint32_t>(ways[i]) << (2 * i) | static_cast<uint32_t>(dense[i]) << (dense_bits + i);
    }
    return bits;
}

Ways unpacked(uint32_t bits) {
    Ways ways;
    for (size_t i = 0; i < ways.size(); i++) {
        ways[i] = static_cast<Way>(bits >> (2 * i) & 3);
    }
    return ways;
}

struct Table {
    std::array<std::atomic<uint32_t>, GGML_TYPE_COUNT> of;
    Table() {
        for (auto & bits : of) {
            bits = none;
        }
    }
};

Table & table() {
    static Table all;
    return all;
}

uint32_t chosen(int type) {
    std::atomic<uint32_t> & kept = table().of[static_cast<size_t>(type)];
    uint32_t                bits = kept.load(std::memory_order_relaxed);
    if (bits == none) {
        const Kernel & kernel = trusted_kernel(type);
        Ways           first  = before_any_choice(kernel);
        DenseRows      dense  = {};
        if (const Dot * only = fixed(kernel)) {
            first.fill(*only == nullptr ? Way::ggml : static_cast<Way>(only - kernel.dot.data()));
            dense.fill(*only != nullptr);
        }
        bits = packed(first, dense);
        kept.store(bits, std::memory_order_relaxed);
    }
    return bits;
}

} // namespace

Ways ways(int type) { return unpacked(chosen(type)); }

bool computes_dense(int type, int64_t n_inputs) {
    switch (n_inputs > 1 ? dense_kernels(type) : Dense::none) {
    case Dense::none:
        return true;
    case Dense::equal:
        return (chosen(type) >> (dense_bits + static_cast<size_t>(std::min<int64_t>(n_inputs, max_inputs)) - 1) & 1) !=
               0;
    default:
        return false;
    }
}

void choose(int type, const Ways & wanted, const DenseRows & dense) {
    const Kernel & kernel = trusted_kernel(type);
    if (fixed(kernel) != nullptr) {
        return;
    }
    Ways ways = wanted;
    for (Way & way : ways) {
        way = has(kernel, way) ? way : Way::ggml;
    }
    table().of[static_cast<size_t>(type)].store(packed(ways, dense), std::memory_order_relaxed);
}

void enable(bool yes) { on = yes; }
bool enabled() { return on.load(std::memory_order_relaxed); }

} // namespace spac::kernels
