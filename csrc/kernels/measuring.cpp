#include "kernels/measuring.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <unistd.h>

namespace spac::kernels {

std::vector<char> some_blocks(ggml_type type) {
    constexpr int      wanted = 64, tries = 100000;
    const size_t       size   = ggml_type_size(type);
    const auto *       traits = ggml_get_type_traits(type);
    std::minstd_rand   random(type + 1);
    std::vector<char>  blocks, block(size);
    std::vector<float> values(static_cast<size_t>(ggml_blck_size(type)));
    for (int i = 0; i < tries && blocks.size() < wanted * size; i++) {
        for (char & byte : block) {
            byte = static_cast<char>(random() >> 8);
        }
        traits->to_float(block.data(), values.data(), ggml_blck_size(type));
        const bool usual = std::all_of(values.begin(), values.end(), [](float x) {
            return x == 0 || (std::fabs(x) > 1e-12F && std::fabs(x) < 1e12F);
        });
        if (usual) {
            blocks.insert(blocks.end(), block.begin(), block.end());
        }
    }
    if (blocks.empty()) {
        blocks.assign(size, 0);
    }
    return blocks;
}

void fill(char * memory, size_t n_bytes, const std::vector<char> & blocks) {
    for (size_t at = 0; at < n_bytes; at += blocks.size()) {
        std::memcpy(memory + at, blocks.data(), std::min(blocks.size(), n_bytes - at));
    }
}

double median(std::vector<double> x) {
    if (x.empty()) {
        return 0;
    }
    const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
    std::nth_element(x.begin(), middle, x.end());
    return *middle;
}

size_t shared_cache() { return static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE))); }

} // namespace spac::kernels
