#include "session/self_draft.h"

#include "session/greedy.h"
#include "session/interrupt.h"

namespace spac {

namespace {

class PassScope {
  public:
    explicit PassScope(Experts & experts) : experts_(experts) { experts_.set_draft_pass(true); }
    ~PassScope() { experts_.set_draft_pass(false); }
    PassScope(const PassScope &)             = delete;
    PassScope & operator=(const PassScope &) = delete;

  private:
    Experts & experts_;
};

} // namespace

llama_tokens SelfDraft::draft(llama_token last, int n_max, RouteLog & routes,
                              const std::function<void(llama_token, int)> & on_token) {
    const int       n_past = target_.n_past();
    const PassScope pass(*experts_);
    llama_tokens    result;
    try {
        while (static_cast<int>(result.size()) < n_max) {
            last = routes.note([&] { return evaluate(last); });
            if (last == LLAMA_TOKEN_NULL || llama_vocab_is_eog(target_.vocab(), last)) {
                break;
            }
            result.push_back(last);
            if (on_token) {
                on_token(last, static_cast<int>(result.size()) - 1);
            }
            interrupt_.raise_if_stopped();
        }
    } catch (...) {
        target_.trim(n_past);
        throw;
    }
    target_.trim(n_past);
    return result;
}

llama_token SelfDraft::evaluate(llama_token token) {
    batch_.clear();
    batch_.add(token, target_.position(target_.n_past()), 0, true);
    target_.decode(batch_, interrupt_);
    return greedy_choice(llama_get_logits_ith(target_.get(), 0), target_.n_vocab(), p_min_);
}

} // namespace spac
