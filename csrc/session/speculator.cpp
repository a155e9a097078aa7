#include "session/speculator.h"

#include "core/not_copied.h"
#include "session/interrupt.h"
#include "session/token_probabilities.h"

#include <algorithm>

namespace spac {

void trim_draft(llama_tokens & draft, const Context & target, int n_max, int n_min) {
    draft.resize(std::min(draft.size(), static_cast<size_t>(n_max)));
    const auto end = std::find_if(draft.begin(), draft.end(), [&](llama_token token) {
        return token >= target.n_vocab() || llama_vocab_is_eog(target.vocab(), token);
    });
    draft.erase(end, draft.end());
    if (static_cast<int>(draft.size()) < n_min) {
        draft.clear();
    }
}

Speculator::Speculator(const DraftConfig & config, Context & target, llama_context * draft_ctx,
                       std::shared_ptr<Experts> draft_experts, Interrupt & interrupt)
    : config_(config), target_(target), interrupt_(interrupt), routes_(draft_experts) {
    if (drafts_itself(config)) {
        check_self_draft(target, draft_experts);
        self_.emplace(target, std::move(draft_experts), config.p_min, interrupt);
    }
    params_     = speculative_params(config);
    model_type_ = draft_model_type(params_.types);
    check_draft_context(model_type_, target, draft_ctx, config.n_max);

    params_.draft.ctx_tgt = target.get();
    if (model_type_) {
        draft_.emplace(draft_ctx, "draft");
        params_.draft.ctx_dft = draft_ctx;
        reads_states_         = *model_type_ != COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE;
        stepwise_             = !reads_states_ && params_.types.size() == 1;
        draft_->clear();
        interrupt_.attach(draft_ctx);
    }
    rebuild();
}

Speculator::~Speculator() {
    spec_.reset(); // its end may still take samplers out of the draft context
    if (draft_) {
        interrupt_.detach(draft_->get());
    }
}

// Makes common's state anew, because it cannot forget: the n-gram caches only grow, and assume that history is appended
// to.
void Speculator::rebuild() {
    if (self_) {
        n_max_ = config_.n_max;
        return;
    }
    spec_.reset();
    try {
        spec_.reset(common_speculative_init(params_, 1));
    } catch (const std::exception & error) {
        throw InputError(std::string("speculation cannot start: ") + error.what());
    }
    SPAC_CHECK(spec_ != nullptr, params_.types.size());
    n_max_ = std::min(config_.n_max, common_speculative_n_max(spec_.get()));
}

int Speculator::n_batch() const { return draft_ ? std::min(draft_->n_batch(), target_.n_batch()) : target_.n_batch(); }

int Speculator::n_known(const llama_tokens & tokens) const {
    const int n = static_cast<int>(tokens.size());
    return reads_states_ ? common_prefix(draft_->tokens(), tokens, n) : n;
}

void Speculator::cut(const llama_tokens & tokens, int n) {
    if (draft_) {
        draft_->keep_prefix(tokens, n);
    }
    rebuild();
}

void Speculator::begin(const llama_tokens & prompt, bool drafting) {
    if (drafting && draft_ && !reads_states_) {
        catch_up(prompt);
    }
    if (spec_) {
        common_speculative_begin(spec_.get(), 0, prompt);
    }
}

void Speculator::clear() {
    if (draft_) {
        draft_->clear();
    }
    rebuild();
}

// Hands tokens to common as a batch of the target's. Ids that the draft model does not have (vocabularies may differ in
// size) are replaced: common would abort, and a guess after such a token is as good as any.
void Speculator::feed(const llama_token * tokens, int n, int pos) {
    common_batch batch(draft_->get());
    const int    n_vocab = draft_->n_vocab();
    for (int i = 0; i < n; ++i) {
        batch.add(tokens[i] < n_vocab ? tokens[i] : 0, pos + i, 0, false);
    }
    if (!common_speculative_process(spec_.get(), batch)) {
        draft_->trim(draft_->n_past());
        interrupt_.raise_if_stopped();
        throw DeviceError("llama.cpp could not evaluate " + std::to_string(n) +
                          " tokens on the draft context at position " + std::to_string(pos));
    }
}

void Speculator::catch_up(const llama_tokens & tokens) {
    draft_->keep_prefix(tokens, static_cast<int>(tokens.size()));
    while (draft_->n_past() < static_cast<int>(tokens.size())) {
        const int pos = draft_->n_past();
        const int n   = std::min(draft_->n_batch(), static_cast<int>(tokens.size()) - pos);
        feed(tokens.data() + pos, n, pos);
        draft_->adopt(llama_tokens(tokens.begin(), tokens.begin() + pos + n));
        interrupt_.raise_if_stopped();
    }
}

void Speculator::follow(int n) {
    if (reads_states_ && draft_->n_past() > n) {
        draft_->trim(n);
    }
}

void Speculator::observe(const common_batch & batch) {
    if (!reads_states_) {
        return;
    }
    // Positions decide what is replaced. A draft made before was dropped from the memory already.
    if (!common_speculative_process(spec_.get(), batch)) {
        draft_->trim(draft_->n_past());
        interrupt_.raise_if_stopped();
        throw DeviceError("llama.cpp could not evaluate " + std::to_string(batch.size()) +
                          " tokens on the draft context");
    }
    draft_->adopt(target_.tokens());
}

llama_tokens Speculator::draft(const llama_tokens & tokens, llama_token last, int n_max,
                               const std::function<void(llama_token, int)> & on_token) {
    routes_.begin();
    if (draft_ && !reads_states_) {
        catch_up(tokens);
    }
    if (draft_ && last >= draft_->n_vocab()) {
        return {};
    }
    llama_tokens result;
    if (self_) {
        result = self_->draft(last, n_max, routes_, on_token);
    } else if (stepwise_) {
        result = draft_stepwise(*draft_, target_, last, n_max, config_.p_min, routes_, interrupt_, on_token);
    } else {
        result = draft_at_once(tokens, last, n_max);
    }
    trim_draft(result, target_, n_max, config_.n_min);
    routes_.trim(static_cast<int>(result.size()) + 1);
    if (!stepwise_ && !self_ && on_token) {
        for (size_t i = 0; i < result.size(); ++i) {
            on_token(result[i], static_cast<int>(i));
        }
    }
    return result;
}

// Calls common_speculative_draft once.
llama_tokens Speculator::draft_once(const llama_tokens & tokens, llama_token last, llama_pos pos, int n_max) {
    llama_tokens result;
    auto &       request = common_speculative_get_draft_params(spec_.get(), 0);
    request              = {true, n_max, pos, last, &tokens, &result};
    common_speculative_draft(spec_.get());
    request.prompt = nullptr;
    request.result = nullptr;
    interrupt_.raise_if_stopped();
    if (static_cast<int>(result.size()) > n_max) {
        result.resize(static_cast<size_t>(n_max));
    }
    return result;
}

// Drafts all tokens in one call. Drops what a draft model then has of the draft in its memory.
llama_tokens Speculator::draft_at_once(const llama_tokens & tokens, llama_token last, int n_max) {
    try {
        auto result = draft_once(tokens, last, static_cast<llama_pos>(tokens.size()), n_max);
        if (draft_) {
            draft_->adopt(tokens);
        }
        return result;
    } catch (...) {
        if (draft_) {
            draft_->adopt(tokens);
        }
        throw;
    }
}

namespace {

// Evaluates a token with the draft model, and returns the most probable one behind it. Returns LLAMA_TOKEN_NULL if the
// draft stops before that, or if llama.cpp cannot evaluate the token. common's sampler would make a list of the
// whole vocabulary and sort it.
llama_token next_token(const Context & draft, llama_token token, llama_pos pos, float p_min, Interrupt & interrupt) {
    common_batch batch(draft.get());
    batch.add(token, pos, draft.seq_id(), true);
    const int status = llama_process(draft.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get());
    interrupt.raise_if_stopped();
    const float * const logits = status == 0 ? llama_get_logits_ith(draft.get(), -1) : nullptr;
    return logits != nullptr ? greedy_choice(logits, draft.n_vocab(), p_min) : LLAMA_TOKEN_NULL;
}

} // namespace

llama_tokens draft_stepwise(Context & draft, const Context & target, llama_token last, int n_max, float p_min,
                            RouteLog & routes, Interrupt & interrupt,
                            const std::function<void(llama_token, int)> & on_token) {
    llama_tokens result;
    llama_tokens held   = draft.tokens(); // tokens in the draft's memory
    const auto   settle = [&] { draft.adopt(held); };
    try {
        while (static_cast<int>(result.size()) < n_max) {
            const auto pos = static_cast<llama_pos>(held.size());
            held.push_back(last);
            last = routes.note([&] { return next_token(draft, last, pos, p_min, interrupt); });
            if (last == LLAMA_TOKEN_NULL || last >= target.n_vocab() || llama_vocab_is_eog(target.vocab(), last)) {
                break;
            }
            result.push_back(last);
            if (on_token) {
                on_token(last, static_cast<int>(result.size()) - 1);
            }
        }
    } catch (...) {
        settle();
        throw;
    }
    settle();
    return result;
}

void Speculator::keep_routes(bool keeps) {
    if (keeps && !(routes_.can_keep() && (stepwise_ || self_))) {
        throw InputError("the draft's routes need the draft model's experts, and the draft type draft-simple alone, or "
                         "the draft type self");
    }
    routes_.keep(keeps);
}

void Speculator::accept(int n, const llama_tokens & tokens) {
    if (spec_ && !stepwise_) { // common does not draft token by token
        common_speculative_accept(spec_.get(), 0, static_cast<uint16_t>(n));
    }
    if (reads_states_) {
        draft_->keep_prefix(tokens, static_cast<int>(tokens.size()));
    }
}

namespace {

class PassScope : NotCopied {
  public:
    explicit PassScope(Experts & experts) : experts_(experts) { experts_.set_draft_pass(true); }
    ~PassScope() { experts_.set_draft_pass(false); }

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
    batch_.add(token, target_.position(target_.n_past()), target_.seq_id(), true);
    target_.decode(batch_, interrupt_);
    return greedy_choice(llama_get_logits_ith(target_.get(), 0), target_.n_vocab(), p_min_);
}

} // namespace spac
