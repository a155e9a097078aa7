#include "kernels.h"

#include "settings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>

#include <cxxabi.h>

namespace pretend {
namespace {

std::string demangle(const char * mangled) {
    int                                           status = 0;
    const std::unique_ptr<char, void (*)(void *)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                       std::free);
    return status == 0 ? text.get() : mangled;
}

template <typename T> T argument(void ** arguments, int i) { return *static_cast<T *>(arguments[i]); }

// Chooses the first `n` of a shuffle of 0 … n_expert - 1. The draw prefers some of them.
void choose(int32_t * ids, size_t n, size_t n_expert, uint64_t place, uint64_t draw) {
    std::vector<int32_t> all(n_expert);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = 0; i < n; ++i) {
        const uint64_t drawn = mix(draw * 1024 + i);
        const bool     liked = (drawn & 1) != 0; // from a quarter that belongs to the place
        const uint64_t from  = liked ? place % n_expert + (drawn >> 8) % (n_expert / 4 + 1) : drawn >> 8;
        std::swap(all[i], all[i + from % (n_expert - i)]);
    }
    std::copy_n(all.begin(), n, ids);
}

// Returns the place where n values of device memory are, or null.
template <typename T> T * place_of(const char * p, size_t n) {
    const RangePtr range = find(p);
    if (range == nullptr || !range->holds(p, n * sizeof(T))) {
        misuse("a kernel of the router's reads or writes %zu bytes outside of device memory", n * sizeof(T));
        return nullptr;
    }
    return reinterpret_cast<T *>(range->at(p));
}

// topk_moe_cuda<n_expert, …>(logits, weights, ids, bias, n_rows, n_used, …): the rows of ids are n_expert long.
std::function<void()> top_k(const Kernel & kernel, void ** arguments) {
    const size_t n_expert = std::stoul(kernel.name.substr(kernel.name.find('<') + 1));
    const size_t n_rows = argument<int>(arguments, 4), n_used = argument<int>(arguments, 5);
    auto * const weights = place_of<float>(argument<char *>(arguments, 1), n_rows * n_used);
    auto * const ids     = place_of<int32_t>(argument<char *>(arguments, 2), (n_rows - 1) * n_expert + n_used);
    if (weights == nullptr || ids == nullptr) {
        return nullptr;
    }
    return [=] {
        static std::atomic<uint64_t> n_drawn{0};
        const uint64_t               draw = n_drawn += n_rows;
        for (size_t t = 0; t < n_rows; ++t) {
            choose(ids + t * n_expert, n_used, n_expert, draw / n_rows, draw + t);
        }
        std::fill_n(weights, n_rows * n_used, 1.0F / static_cast<float>(n_used));
    };
}

// k_argsort_f32_i32<order>(x, dst, ncols, …) writes one permutation per block.
std::function<void()> argsort(void ** arguments, dim3 grid) {
    const size_t n_cols = argument<int>(arguments, 2), n_rows = std::max({grid.x, grid.y, grid.z});
    auto * const ids = place_of<int32_t>(argument<char *>(arguments, 1), n_rows * n_cols);
    if (ids == nullptr) {
        return nullptr;
    }
    return [=] {
        static std::atomic<uint64_t> n_drawn{0};
        for (size_t t = 0; t < n_rows; ++t) {
            choose(ids + t * n_cols, n_cols, n_cols, 0, ++n_drawn);
        }
    };
}

// k_get_rows_float<int, int>(table, ids, to, width, ne11, ne12, s1, s2, s3, nb01, nb02, nb03, s10, s11, s12) looks
// numbers up by ids. A router's choice reaches the host's memory by it.
std::function<void()> look_up(void ** arguments, dim3 grid) {
    auto * const table = argument<char *>(arguments, 0);
    auto * const ids   = argument<char *>(arguments, 1);
    auto * const to    = argument<char *>(arguments, 2);
    const size_t width = argument<int64_t>(arguments, 3);
    const size_t n0 = grid.x, n1 = argument<size_t>(arguments, 4), n2 = argument<uint3>(arguments, 5).z;

    std::array<size_t, 9> stride = {}; // elements for `to` and ids, bytes for the table
    for (size_t i = 0; i < stride.size(); ++i) {
        stride.at(i) = argument<size_t>(arguments, 6 + static_cast<int>(i));
    }
    return [=] {
        for (size_t i = 0; i < n0 * n1 * n2; ++i) {
            const size_t i0 = i % n0, i1 = i / n0 % n1, i2 = i / n0 / n1;
            const auto * id = place_of<int32_t>(ids + 4 * (i0 * stride[6] + i1 * stride[7] + i2 * stride[8]), 1);
            if (id == nullptr) {
                return;
            }
            const auto * from = place_of<float>(table + *id * stride[3] + i1 * stride[4] + i2 * stride[5], width);
            auto *       into = place_of<float>(to + 4 * (i0 * stride[0] + i1 * stride[1] + i2 * stride[2]), width);
            if (from == nullptr || into == nullptr) {
                return;
            }
            std::copy_n(from, width, into);
        }
    };
}

} // namespace

Kernel describe(const char * mangled) {
    const std::string text = demangle(mangled);
    std::vector<bool> points; // by parameter, from the last one on
    size_t            at = text.size();
    for (int depth = 0; at-- > 0;) {
        const char c = text[at];
        depth += (c == ')' || c == '>' || c == '}' || c == ']') - (c == '(' || c == '<' || c == '{' || c == '[');
        if (depth == 0) {
            break;
        }
        if (depth == 1 && (c == ',' || c == ')')) {
            points.push_back(text[at - 1] == '*');
        }
    }
    Kernel kernel;
    kernel.mangled = mangled;
    kernel.name    = text.substr(text.rfind("void ", 0) == 0 ? 5 : 0);
    kernel.name.resize(kernel.name.size() - (text.size() - at));
    for (size_t i = 0; i < points.size(); ++i) {
        if (points[points.size() - 1 - i]) {
            kernel.pointers.push_back(static_cast<int>(i));
        }
    }
    kernel.launches = &launches(kernel.name);
    return kernel;
}

std::function<void()> work_of(const Kernel & kernel, void ** arguments, dim3 grid) {
    if (kernel.name.rfind("topk_moe_cuda<", 0) == 0) {
        return top_k(kernel, arguments);
    }
    if (kernel.name.rfind("k_argsort_f32_i32<", 0) == 0) {
        return argsort(arguments, grid);
    }
    if (kernel.name == "k_get_rows_float<int, int>") {
        return look_up(arguments, grid);
    }
    return nullptr;
}

} // namespace pretend
