// What a draft of every length is worth. python/spac/governor/model.py has the model, its equations, and the same in
// numpy; that is the reference, and results are equal to the bit.
#pragma once

namespace spac {

struct RooflineCosts {
    double         draft_base, draft_token;
    const double * verify; // [n + 1]
    const double * misses; // [n + 1]
    double         price;
};

// Arrays of n + 1: of drafts of 0, 1, ... n tokens.
struct RooflineCurve {
    double *tokens, *cycle, *longest, *missed, *compute;
};

// accept, go_on: [n].
void roofline_curve(int n, const double * accept, const double * go_on, const RooflineCosts & costs,
                    const RooflineCurve & curve);

} // namespace spac
