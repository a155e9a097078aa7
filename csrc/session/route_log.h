// What the router of a draft model chose while it drafted: a prediction of what the target will choose when it
// verifies.
#pragma once

#include "session/session.h"

#include <memory>
#include <vector>

namespace spac {

// Only what runs in note() counts: not the prompt, and not the batches that bring the draft model up to date.
class RouteLog {
  public:
    // `experts`: the draft model's, or null, where nothing can be kept. They count nothing outside note() from now on.
    explicit RouteLog(std::shared_ptr<Experts> experts);

    bool can_keep() const { return experts_ != nullptr; }
    // Off until it is asked for; costs nothing then.
    void keep(bool keeps);
    // A new draft.
    void begin() { trim(0); }
    // Runs an evaluation of one token by the draft model, and appends what its layers chose. When it returns, the
    // context must have been synchronized, as sampling from it does: only then wholly resident layers are counted.
    template <typename Evaluate> auto note(const Evaluate & evaluate) {
        const Counting counting(keeps_ ? experts_.get() : nullptr);
        auto           result = evaluate();
        append();
        return result;
    }
    // Of tokens from `n` on, which the target will not verify, nothing is known.
    void trim(int n);
    // Valid until the next change; null unless they are kept.
    const DraftRoutes * get() const { return keeps_ ? &routes_ : nullptr; }

  private:
    class Counting {
      public:
        explicit Counting(Experts * experts);
        ~Counting();
        Counting(const Counting &)             = delete;
        Counting & operator=(const Counting &) = delete;

      private:
        Experts * experts_;
    };

    void append();

    std::shared_ptr<Experts> experts_;
    bool                     keeps_ = false;
    DraftRoutes              routes_;
    std::vector<int32_t>     ids_, demand_; // scratch of append()
};

} // namespace spac
