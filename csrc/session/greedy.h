// The greedy choice of a draft's next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spac {

// Returns the place of the largest value. Returns -1 if several are as large, or if one is not a number; n > 0.
int32_t only_largest(const float * logits, int n);

// Chooses a draft's tokens one after the other. A token's confidence is its share of the ten most probable ones'
// probability, as in llama.cpp's drafts.
class GreedyChoice {
  public:
    // A draft stops before a token with a confidence below `p_min`. If `measures`, the confidences are kept.
    GreedyChoice(float p_min, bool measures) : p_min_(p_min), measures_(measures) {}

    void set_p_min(float p_min) { p_min_ = p_min; }
    // Begins a draft.
    void begin() { confidences_.clear(); }
    // Returns the first of the most probable tokens, or -1 if the draft stops before it; n > 0.
    int32_t next(const float * logits, int n);
    // Forgets the confidences from the token `n` on.
    void trim(size_t n) { confidences_.resize(n < confidences_.size() ? n : confidences_.size()); }
    // Returns the confidences of the draft's tokens, and of the one before which it stopped. Empty unless measured.
    const std::vector<float> & confidences() const { return confidences_; }

  private:
    float              p_min_;
    bool               measures_;
    std::vector<float> confidences_;
};

} // namespace spac
