// The images that sequences hold. An image stands in a list of tokens as a run of equal placeholders, one for each of
// its places in the memory. The placeholder is a negative number that belongs to the image's content. So lists of
// tokens are compared as usual, and an image is part of a common prefix only if it is the same one.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace spac {

inline bool is_placeholder(int32_t token) { return token < 0; }

// The size of an image: its places in the memory, and its positions. With M-RoPE it takes fewer positions than places.
struct ImageExtent {
    int n_tokens = 0;
    int n_pos    = 0;
};

// May be used from any thread.
class ImageTable {
  public:
    // Returns the placeholder of the image with this content. A content has one extent.
    int32_t placeholder(const std::string & content, ImageExtent extent);
    // Returns the extent of a placeholder; an empty one for a number that this table never gave.
    ImageExtent extent(int32_t placeholder) const;
    // Returns the position at which a token after the first `n` of `tokens` stands. They hold whole images.
    int position(const std::vector<int32_t> & tokens, int n) const;

  private:
    mutable std::mutex                       mutex_;
    std::unordered_map<std::string, int32_t> placeholders_;
    std::vector<ImageExtent>                 extents_;
};

} // namespace spac
