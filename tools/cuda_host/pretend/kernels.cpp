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

// Returns the parts of a parameter list, split at its commas outside of brackets.
std::vector<std::string> parts(const std::string & list) {
    std::vector<std::string> found(1);
    int                      depth = 0;
    for (const char c : list) {
        depth += (c == '(' || c == '<' || c == '{' || c == '[') - (c == ')' || c == '>' || c == '}' || c == ']');
        if (c == ',' && depth == 0) {
            found.emplace_back();
        } else {
            found.back() += c;
        }
    }
    return found;
}

// Returns the position where the parameter list of a function's name begins.
size_t list_begin(const std::string & text) {
    int depth = 0;
    for (size_t i = text.size(); i-- > 0;) {
        depth += (text[i] == ')') - (text[i] == '(');
        if (text[i] == '(' && depth == 0) {
            return i;
        }
    }
    return std::string::npos;
}

template <typename T> T argument(void ** arguments, int i) { return *static_cast<T *>(arguments[i]); }

// Returns the number in front of the first comma of a name's template arguments.
int first_template_argument(const std::string & name) {
    const size_t at = name.find('<');
    return at == std::string::npos ? 0 : std::atoi(name.c_str() + at + 1);
}

// Chooses the first `n` of a shuffle of 0 … n_expert - 1. The draw prefers some of them.
void choose(int32_t * ids, int n, int n_expert, uint64_t place, uint64_t draw) {
    std::vector<int32_t> all(static_cast<size_t>(n_expert));
    std::iota(all.begin(), all.end(), 0);
    for (int i = 0; i < n; ++i) {
        const uint64_t drawn = mix(draw * 1024 + static_cast<uint64_t>(i));
        const int      left  = n_expert - i;
        const bool     liked = (drawn & 1) != 0; // from a quarter that belongs to the place
        const auto     from =
            liked ? (place % static_cast<uint64_t>(n_expert) + (drawn >> 8) % (n_expert / 4 + 1)) : (drawn >> 8);
        std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(i) + from % static_cast<uint64_t>(left)]);
    }
    std::copy_n(all.begin(), n, ids);
}

struct Target {
    RangePtr range;
    char *   bytes = nullptr;
};

Target target_of(const void * p, size_t bytes) {
    const RangePtr range = find(p);
    if (range == nullptr || !range->holds(p, bytes)) {
        misuse("a kernel of the router's reads or writes %zu bytes outside of device memory", bytes);
        return {};
    }
    return {range, range->at(p)};
}

Target target_of(uintptr_t p, size_t bytes) { return target_of(reinterpret_cast<const void *>(p), bytes); }

// topk_moe_cuda<n_expert, …>(logits, weights, ids, bias, n_rows, n_used, …): the rows of ids are n_expert long.
std::function<void()> top_k(const Kernel & kernel, void ** arguments) {
    const int  n_expert = first_template_argument(kernel.name);
    const auto n_rows = argument<int>(arguments, 4), n_used = argument<int>(arguments, 5);
    const auto rows    = static_cast<size_t>(n_rows);
    auto       weights = target_of(argument<void *>(arguments, 1), rows * n_used * sizeof(float));
    auto       ids     = target_of(argument<void *>(arguments, 2), (rows - 1) * n_expert * 4 + n_used * size_t{4});
    if (weights.bytes == nullptr || ids.bytes == nullptr) {
        return nullptr;
    }
    return [=] {
        static std::atomic<uint64_t> n_drawn{0};
        const uint64_t               draw = n_drawn += rows;
        for (int t = 0; t < n_rows; ++t) {
            auto * row = reinterpret_cast<int32_t *>(ids.bytes) + static_cast<ptrdiff_t>(t) * n_expert;
            choose(row, n_used, n_expert, draw / rows, draw + static_cast<uint64_t>(t));
            std::fill_n(reinterpret_cast<float *>(weights.bytes) + static_cast<ptrdiff_t>(t) * n_used, n_used,
                        1.0F / static_cast<float>(n_used));
        }
    };
}

// k_argsort_f32_i32<order>(x, dst, ncols, …) writes one permutation per block.
std::function<void()> argsort(void ** arguments, dim3 grid) {
    const auto n_cols = argument<int>(arguments, 2);
    const auto n_rows = static_cast<int>(std::max(grid.x, std::max(grid.y, grid.z)));
    auto       ids    = target_of(argument<void *>(arguments, 1), static_cast<size_t>(n_rows) * n_cols * 4);
    if (ids.bytes == nullptr) {
        return nullptr;
    }
    return [=] {
        static std::atomic<uint64_t> n_drawn{0};
        for (int t = 0; t < n_rows; ++t) {
            choose(reinterpret_cast<int32_t *>(ids.bytes) + static_cast<ptrdiff_t>(t) * n_cols, n_cols, n_cols, 0,
                   ++n_drawn);
        }
    };
}

// k_get_rows_float<int, int>(table, ids, to, width, ne11, ne12, s1, s2, s3, nb01, nb02, nb03, s10, s11, s12) looks
// numbers up by ids. A router's choice reaches the host's memory by it.
std::function<void()> look_up(void ** arguments, dim3 grid) {
    const auto table = reinterpret_cast<uintptr_t>(argument<void *>(arguments, 0));
    const auto ids   = reinterpret_cast<uintptr_t>(argument<void *>(arguments, 1));
    const auto to    = reinterpret_cast<uintptr_t>(argument<void *>(arguments, 2));
    const auto width = static_cast<size_t>(argument<int64_t>(arguments, 3)), n1 = argument<size_t>(arguments, 4);
    const auto n2                = static_cast<size_t>(argument<uint3>(arguments, 5).z);
    std::array<size_t, 9> stride = {}; // elements for `to` and ids, bytes for the table
    for (int i = 0; i < 9; ++i) {
        stride[static_cast<size_t>(i)] = argument<size_t>(arguments, 6 + i);
    }
    return [=, n0 = size_t{grid.x}] {
        for (size_t i = 0; i < n0 * n1 * n2; ++i) {
            const size_t i0 = i % n0, i1 = i / n0 % n1, i2 = i / n0 / n1;
            const auto   id = target_of(ids + 4 * (i0 * stride[6] + i1 * stride[7] + i2 * stride[8]), 4);
            if (id.bytes == nullptr) {
                return;
            }
            const auto row  = static_cast<size_t>(*reinterpret_cast<int32_t *>(id.bytes));
            const auto from = target_of(table + row * stride[3] + i1 * stride[4] + i2 * stride[5], 4 * width);
            const auto into = target_of(to + 4 * (i0 * stride[0] + i1 * stride[1] + i2 * stride[2]), 4 * width);
            if (from.bytes == nullptr || into.bytes == nullptr) {
                return;
            }
            std::copy_n(from.bytes, 4 * width, into.bytes);
        }
    };
}

} // namespace

Kernel describe(const char * mangled) {
    Kernel            kernel;
    const std::string text  = demangle(mangled);
    const size_t      begin = list_begin(text);
    kernel.mangled          = mangled;
    kernel.name             = text.substr(0, begin);
    if (kernel.name.rfind("void ", 0) == 0) {
        kernel.name.erase(0, 5);
    }
    if (begin != std::string::npos) {
        const auto list = parts(text.substr(begin + 1, text.size() - begin - 2));
        for (size_t i = 0; i < list.size(); ++i) {
            if (!list[i].empty() && list[i].back() == '*') {
                kernel.pointers.push_back(static_cast<int>(i));
            }
        }
    }
    kernel.counter = kernel_count(kernel.name);
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
