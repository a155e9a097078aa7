// The experts that a drafting model's routers choose.
#pragma once

#include "core/not_copied.h"
#include "session/session.h"

#include <memory>
#include <vector>

namespace spac {

// The experts that the router of a draft model chose while it drafted. They predict what the target will choose when it
// verifies. Counts only what runs in note(): not the prompt, and not the batches that bring the draft model up to date.
class RouteLog {
  public:
    // `experts` are the draft model's. They count nothing outside note() from now on. If null, nothing can be kept.
    explicit RouteLog(std::shared_ptr<Experts> experts);

    // Switches the log on or off. It is off at first, and costs nothing then.
    void keep(bool keeps);
    // Begins a new draft.
    void begin() { trim(0); }
    // Runs an evaluation of one token by the draft model, and appends what its layers chose. When the evaluation
    // returns, the context must have been synchronized, as sampling from it does: only then are wholly resident layers
    // counted.
    template <typename Evaluate> auto note(const Evaluate & evaluate) {
        const Counting counting(keeps_ ? experts_.get() : nullptr);
        auto           result = evaluate();
        append();
        return result;
    }
    // Drops the tokens from `n` on, which the target will not verify.
    void trim(int n);
    int  size() const { return routes_.n_tokens; }
    // Returns the routes, which are valid until the next change, or null if they are not kept.
    const DraftRoutes * get() const { return keeps_ ? &routes_ : nullptr; }

  private:
    class Counting : NotCopied {
      public:
        explicit Counting(Experts * experts);
        ~Counting();

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
