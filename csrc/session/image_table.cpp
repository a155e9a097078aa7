#include "session/image_table.h"

#include <algorithm>

namespace spac {

namespace {

constexpr int32_t first_placeholder = -2; // -1 is llama.cpp's "no token"

} // namespace

int32_t ImageTable::placeholder(const std::string & content, ImageExtent extent) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] =
        placeholders_.try_emplace(content, first_placeholder - static_cast<int32_t>(extents_.size()));
    if (is_new) {
        extents_.push_back(extent);
    }
    return found->second;
}

ImageExtent ImageTable::extent(int32_t placeholder) const {
    const std::lock_guard lock(mutex_);
    const auto            index = static_cast<int64_t>(first_placeholder) - placeholder;
    return index >= 0 && index < static_cast<int64_t>(extents_.size()) ? extents_[static_cast<size_t>(index)]
                                                                       : ImageExtent{};
}

int ImageTable::position(const std::vector<int32_t> & tokens, int n) const {
    int pos = n;
    for (int i = 0; i < n;) {
        const auto token = tokens[static_cast<size_t>(i)];
        if (!is_placeholder(token)) {
            ++i;
            continue;
        }
        const auto image = extent(token);
        pos -= image.n_tokens - image.n_pos;
        i += std::max(image.n_tokens, 1);
    }
    return pos;
}

} // namespace spac
