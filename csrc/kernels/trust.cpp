// Finds the kernels that are used: those that give ggml's results on this machine, in this build. Compilers may fuse a
// product and a sum in ggml's code that they did not fuse where a kernel was written. Then the kernel is not used, and
// nothing else changes.
#include "kernels/lanes.h"
#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <vector>

namespace spac::kernels {
namespace {

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b)); }

constexpr int most_inputs = 9;

// Returns true if the results of `compute` are those of ggml's products of pairs, for `least` to most_inputs rows of
// input. Any bytes are weights. Some have no finite scale, and are compared all the same.
template <typename Compute> bool gives_what_ggml_gives(const Compute & compute, int block, ggml_type type, int least) {
    constexpr int      n_weights = 67, n_inputs = most_inputs;
    const int64_t      n         = 2 * block;
    const auto *       traits    = ggml_get_type_traits_cpu(type);
    const size_t       stride    = ggml_row_size(type, n);
    const size_t       input_row = ggml_row_size(traits->vec_dot_type, n);
    std::minstd_rand   random(type + 1);
    std::vector<char>  weights(stride * n_weights), inputs(input_row * n_inputs);
    std::vector<float> row(static_cast<size_t>(n)), ours(n_weights * n_inputs);
    for (char & byte : weights) {
        byte = static_cast<char>(random() >> 8);
    }
    const void * input[n_inputs];
    float *      result[n_inputs];
    for (size_t i = 0; i < n_inputs; i++) {
        for (float & x : row) {
            x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * .003F;
        }
        input[i]  = inputs.data() + i * input_row;
        result[i] = ours.data() + i * n_weights;
        ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float(row.data(), inputs.data() + i * input_row, n);
    }
    for (int count = least; count <= n_inputs; count++) {
        if (!compute({n, weights.data(), stride, n_weights, input, result, count})) {
            return false;
        }
        for (int i = 0; i < count; i++) {
            for (int r = 0; r < n_weights; r++) {
                float theirs;
                traits->vec_dot(static_cast<int>(n), &theirs, 0, weights.data() + static_cast<size_t>(r) * stride, 0,
                                input[i], 0, 1);
                if (!same(theirs, result[i][r])) {
                    return false;
                }
            }
        }
    }
    return true;
}

struct Candidate {
    ggml_type type;
    Kernel    kernel;
};

const std::vector<Candidate> & candidates() {
    static const std::vector<Candidate> all = {
#ifdef SPAC_LANES_ONE
        {GGML_TYPE_Q2_K, q2_K},   {GGML_TYPE_Q3_K, q3_K},       {GGML_TYPE_Q4_K, q4_K},
        {GGML_TYPE_Q5_K, q5_K},   {GGML_TYPE_Q6_K, q6_K},       {GGML_TYPE_IQ4_XS, iq4_xs},
        {GGML_TYPE_Q4_0, q4_0},   {GGML_TYPE_Q4_1, q4_1},       {GGML_TYPE_Q5_0, q5_0},
        {GGML_TYPE_Q5_1, q5_1},   {GGML_TYPE_Q8_0, q8_0},       {GGML_TYPE_IQ4_NL, iq4_nl},
        {GGML_TYPE_MXFP4, mxfp4}, {GGML_TYPE_NVFP4, nvfp4},     {GGML_TYPE_IQ1_S, iq1_s},
        {GGML_TYPE_IQ1_M, iq1_m}, {GGML_TYPE_IQ2_XXS, iq2_xxs}, {GGML_TYPE_IQ2_XS, iq2_xs},
        {GGML_TYPE_IQ2_S, iq2_s}, {GGML_TYPE_IQ3_XXS, iq3_xxs}, {GGML_TYPE_IQ3_S, iq3_s},
#endif
    };
    return all;
}

using Table = std::array<Kernel, GGML_TYPE_COUNT>;

Table trusted() {
    ggml_cpu_init(); // fills ggml's tables
    Table table{};
    for (const auto & [type, kernel] : candidates()) {
        Kernel & trusted = table[static_cast<size_t>(type)];
        for (size_t variant = 0; variant < n_variants; variant++) {
            if (kernel.dot[variant] != nullptr && gives_what_ggml_gives(kernel.dot[variant], kernel.block, type, 1)) {
                trusted.dot[variant] = kernel.dot[variant];
                trusted.block        = kernel.block;
            }
        }
    }
    return table;
}

// The comparison for each type that there are kernels for.
using DenseTable = std::array<Dense, GGML_TYPE_COUNT>;

DenseTable compared_dense() {
    ggml_cpu_init();
    DenseTable table{};
    for (const auto & [type, kernel] : candidates()) {
        bool       there   = true;
        const auto compute = [&, kind = type](const Rows & rows) { return there = multiply_dense(rows, kind); };
        const bool equal   = gives_what_ggml_gives(compute, kernel.block, type, 2);
        table[static_cast<size_t>(type)] = !there ? Dense::none : equal ? Dense::equal : Dense::different;
    }
    return table;
}

} // namespace

Dense dense_kernels(int type) {
    static const DenseTable table = [] {
        try {
            return compared_dense();
        } catch (const std::bad_alloc &) {
            DenseTable unknown;
            unknown.fill(Dense::different);
            return unknown;
        }
    }();
    return table[static_cast<size_t>(type)];
}

const Kernel & trusted_kernel(int type) {
    static const Table table = [] {
        try {
            return trusted();
        } catch (const std::bad_alloc &) {
            return Table{}; // the same answer for all threads
        }
    }();
    return table[static_cast<size_t>(type)];
}

// Compares rows of numbers, and rows of halves that round: these show if a product was fused with what is added.
bool quantization_is_trusted() {
    static const bool trusted = [] {
#ifdef SPAC_LANES_ONE
        constexpr int64_t  n    = 2 * 256;
        const auto *       type = ggml_get_type_traits_cpu(GGML_TYPE_Q8_K);
        std::minstd_rand   random(1);
        std::vector<float> row(n);
        for (int i = 0; i < 64; i++) {
            const float most = static_cast<float>(1 + random() % 1000) * .01F;
            for (float & x : row) {
                const int k = static_cast<int>(random() % 254) - 127;
                x           = i % 2 ? most * (static_cast<float>(k) + .5F) / 127 : most * static_cast<float>(k) * .007F;
            }
            row[random() % n] = most;
            std::vector<char> theirs(ggml_row_size(GGML_TYPE_Q8_K, n), 1), ours = theirs;
            type->from_float(row.data(), theirs.data(), n);
            quantize_q8_K(row.data(), ours.data(), n);
            if (theirs != ours) {
                return false;
            }
        }
        return true;
#else
        return false;
#endif
    }();
    return trusted;
}

int type_named(const std::string & name) {
    for (const Candidate & it : candidates()) {
        if (name == ggml_type_name(it.type)) {
            return it.type;
        }
    }
    return -1;
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const Candidate & it : candidates()) {
        names.emplace_back(ggml_type_name(it.type));
    }
    return names;
}

std::vector<std::string> trusted_kernel_names() {
    std::vector<std::string> names;
    for (const Candidate & it : candidates()) {
        if (trusted_kernel(it.type).block != 0) {
            names.emplace_back(ggml_type_name(it.type));
        }
    }
    return names;
}

} // namespace spac::kernels
