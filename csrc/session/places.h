// The places for sequences on a context, and the cells of the memory that they share.
#pragma once

#include "core/not_copied.h"
#include "session/context.h"
#include "session/sequence.h"
#include "session/session.h"
#include "session/token_sampler.h"

#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace spac {

// A place for a sequence.
struct Place : NotCopied {
    Place(llama_context * ctx, size_t at)
        : index(at), target(ctx, "target", static_cast<llama_seq_id>(at)), sequence(target) {}

    size_t                            index;
    Context                           target;
    Sequence                          sequence;
    std::optional<TokenSampler>       sampler;
    int                               id       = -1; // -1: the place is free
    uint64_t                          since    = 0;  // order of joining; of leaving if it is free
    int                               n_top    = -1;
    int                               n_reused = 0;
    bool                              parked   = false; // true: its memory is in `past`, or has to be evaluated again
    Remembered                        past;
    llama_tokens                      drafted;
    int                               draft_length = 0;
    bool                              waits        = false; // true: no place in the memory at this step
    std::exception_ptr                error;                // of this step
    llama_tokens                      accepted;             // of this step
    int                               n_drafted = 0;        // of this step
    StopReason                        reason    = StopReason::none;
    std::optional<TokenProbabilities> probabilities;
    ExpertCounts                      experts; // of this step

    bool is_free() const { return id < 0; }
    bool is_ready() const { return !waits && error == nullptr; }
};

using PlaceList = std::vector<Place *>;

inline bool is_older(const Place * a, const Place * b) { return a->since < b->since; }

// Returns true if the sequences of a context share the cells of its memory.
bool shares_cells(llama_context * ctx);

// With a unified memory, sequences share its cells. If they do not suffice, places that are free lose theirs first.
// Then the youngest sequence is copied to host memory.
class Places {
  public:
    // `ctx` has n_seq_max places.
    explicit Places(llama_context * ctx);

    int     size() const { return static_cast<int>(places_.size()); }
    int     n_joined() const;
    Place & operator[](size_t index) const { return *places_[index]; }
    // Returns the place of a sequence. Throws InputError for an unknown id.
    Place & of(int id) const;
    // Returns the free place whose memory has most of `wanted`, or else the one that is free for longest. Throws
    // InputError if none is free.
    Place & choose(const llama_tokens & wanted) const;
    // Gives the place what another sequence has of `wanted`, if that is more than it has itself. The cells are shared.
    void share(Place & place, const llama_tokens & wanted) const;

    // Returns true if the memory has cells for `n_tokens` more.
    bool fits(int n_tokens) const { return !unified_ || n_used() + n_tokens <= capacity_; }
    // Finds cells for `n_tokens` more of a sequence. Returns false if only older sequences could give them.
    bool make_room(Place & place, int n_tokens);
    // Brings a parked sequence back, or lets it wait. If the host had no memory for it, its tokens are evaluated again.
    void come_back(Place & place);
    // If a sequence has overflowed (Context::note_logit), clears the memory with its data: the cells of one sequence
    // would spoil the others' results. Then brings the other sequences back.
    void drop_overflow();

  private:
    int  n_used() const;
    void release(Place & place);

    std::vector<std::unique_ptr<Place>> places_;
    bool                                unified_;
    int                                 capacity_; // tokens that the memory holds, of all sequences
};

} // namespace spac
