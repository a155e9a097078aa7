#include "session/parallel_impl.h"

#include "../src/llama-context.h" // for n_outputs_max and kv_unified
#include "session/draft_types.h"
#include "session/token_probabilities.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace spac {

namespace {

// Returns how many tokens all sequences of a context hold together.
int capacity_of(const llama_context * ctx) {
    const bool shares_cells = ctx->get_cparams().kv_unified || llama_n_seq_max(ctx) == 1;
    return shares_cells ? static_cast<int>(llama_n_ctx(ctx)) : std::numeric_limits<int>::max();
}

// Throws InputError unless the target can draft for itself: its memory goes back to any place, and its experts have
// low-bit copies.
void check_self_draft(const Context & target, const std::shared_ptr<Experts> & experts) {
    if (Context::has_recurrent_model(target.get())) {
        throw InputError("the target's memory is recurrent and cannot take back what it drafts for itself: choose "
                         "another draft type");
    }
    if (!experts) {
        throw InputError("a target that drafts for itself needs experts on a device");
    }
    if (experts->draft_bytes() == 0) {
        throw InputError("the draft type self needs low-bit copies of the target's experts: attach them first");
    }
}

// A draft of the target for itself, in a draft pass of its experts (MoE-SpeQ 3.4.1).
class SelfDraft : NotCopied {
  public:
    SelfDraft(Experts & experts, Context & target) : experts_(experts), target_(target), n_past_(target.n_past()) {
        experts_.set_draft_pass(true);
    }
    ~SelfDraft() {
        experts_.set_draft_pass(false);
        target_.trim(n_past_);
    }

  private:
    Experts & experts_;
    Context & target_;
    int       n_past_;
};

// Cuts a draft to `n_max` tokens, and before a token that the target does not have or that ends the generation: what
// the target says after that is not part of the text. A draft of fewer than `n_min` tokens is dropped.
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

} // namespace

ParallelDrafts::ParallelDrafts(const DraftConfig & config, const std::vector<Context *> & targets,
                               llama_context * draft_ctx, const std::shared_ptr<Experts> & experts)
    : config_(config), targets_(targets), routes_(experts) {
    auto * const target_ctx = targets_.front()->get();
    if (drafts_itself(config)) {
        check_self_draft(*targets_.front(), experts);
        capacity_    = capacity_of(target_ctx);
        own_experts_ = experts;
        return;
    }
    auto params          = speculative_params(config);
    params.draft.ctx_tgt = target_ctx;
    params.draft.ctx_dft = draft_ctx;
    llama_memory_clear(llama_get_memory(draft_ctx), false);
    capacity_ = capacity_of(draft_ctx);
    for (size_t i = 0; i < targets_.size(); ++i) {
        drafts_.emplace_back(draft_ctx, static_cast<llama_seq_id>(i));
    }
    try {
        spec_.reset(common_speculative_init(params, static_cast<uint32_t>(targets_.size())));
    } catch (const std::exception & error) {
        throw InputError(std::string("speculation cannot start: ") + error.what());
    }
}

// Makes room in the draft model's memory for the requests, and returns those that fit. Sequences of the target share
// cells with a common beginning, and those of the draft model do not, so its memory may be too small for all. The
// oldest fit first. The other sequences lose their tokens as far as these need room.
std::vector<ParallelDrafts::Request> ParallelDrafts::that_fit(const std::vector<Request> & requests) {
    std::vector<Request> fitting;
    int                  n_planned = 0;
    std::vector<char>    drafts(drafts_.size(), 0);
    for (const auto & each : requests) {
        const int size = static_cast<int>(each.tokens->size()), n = size + each.n_max + 1;
        drafts_[each.index].keep_prefix(*each.tokens);
        if (n_planned + n <= capacity_) {
            n_planned += n;
            drafts[each.index] = 1;
            fitting.push_back(each);
        }
    }
    int n_other = 0;
    for (size_t i = 0; i < drafts_.size(); ++i) {
        n_other += drafts[i] ? 0 : drafts_[i].n_past();
    }
    for (size_t i = 0; i < drafts_.size() && n_planned + n_other > capacity_; ++i) {
        if (!drafts[i]) {
            n_other -= drafts_[i].n_past();
            drafts_[i].clear();
        }
    }
    return fitting;
}

// Evaluates what the draft model's memory lacks of the sequences, in one batch if it is large enough.
void ParallelDrafts::feed(const std::vector<Request> & requests) {
    auto * const ctx     = drafts_.front().get();
    const int    n_vocab = drafts_.front().n_vocab();
    const int    n_batch = static_cast<int>(llama_n_batch(ctx));
    common_batch batch(ctx);
    const auto   flush = [&] {
        if (batch.size() > 0 && !common_speculative_process(spec_.get(), batch)) {
            for (auto & each : drafts_) {
                each.trim(each.n_past());
            }
            throw DeviceError("llama.cpp could not evaluate " + std::to_string(batch.size()) +
                                " tokens on the draft context");
        }
        batch.clear();
    };
    for (const auto & request : requests) {
        auto &       draft  = drafts_[request.index];
        const auto & tokens = *request.tokens;
        draft.keep_prefix(tokens);
        for (int pos = draft.n_past(); pos < static_cast<int>(tokens.size()); ++pos) {
            // Ids that the draft model does not have (vocabularies may differ in size) are replaced: common would
            // abort, and a guess after such a token is as good as any.
            const auto token = tokens[static_cast<size_t>(pos)];
            batch.add(token < n_vocab ? token : 0, pos, draft.seq_id(), false);
            if (batch.size() == n_batch) {
                flush();
                draft.adopt(llama_tokens(tokens.begin(), tokens.begin() + pos + 1));
            }
        }
    }
    flush();
    for (const auto & request : requests) {
        drafts_[request.index].adopt(*request.tokens);
    }
}

void ParallelDrafts::draft(const std::vector<Request> & requests, const OnToken & on_token) {
    for (const auto & each : requests) {
        each.draft->clear();
    }
    routes_.begin();
    if (own_experts_ != nullptr) {
        draft_one_by_one(requests, on_token);
        return;
    }
    const auto fitting = that_fit(requests);
    feed(fitting);
    if (on_token || routes_.get() != nullptr || fitting.size() == 1) {
        draft_one_by_one(fitting, on_token);
    } else {
        draft_at_once(fitting);
    }
}

// Tells the target what its memory holds. Returns false if that is not all tokens of the request, as beside images, or
// if there is no room for a draft behind it. Cells that sequences share count for each of them.
bool ParallelDrafts::tell(const Request & request) {
    const auto n_held = [](const Context & target) {
        return llama_memory_seq_pos_max(llama_get_memory(target.get()), target.seq_id()) + 1;
    };
    auto & target = *targets_[request.index];
    if (n_held(target) != static_cast<int>(request.tokens->size())) {
        return false;
    }
    const int n_used = std::accumulate(targets_.begin(), targets_.end(), 0,
                                       [&](int n, const auto * each) { return n + n_held(*each); });
    if (request.n_max + 1 > capacity_ - n_used) {
        return false;
    }
    target.adopt(*request.tokens);
    return true;
}

// Drafts for one sequence after the other, with the draft model or the target itself.
void ParallelDrafts::draft_one_by_one(const std::vector<Request> & requests, const OnToken & on_token) {
    int        n_evaluated = 0;
    bool       refused     = false; // true: the last draft ended at a token that it refused
    const auto note        = [&](llama_token token) {
        if (on_token) {
            on_token(token, n_evaluated++);
        }
    };
    for (const auto & each : requests) {
        if (own_experts_ != nullptr ? !tell(each) : each.last >= drafts_[each.index].n_vocab()) {
            continue;
        }
        if (refused) {
            note(LLAMA_TOKEN_NULL);
        }
        const int n_before = routes_.size();
        *each.draft        = draft_alone(each, note);
        refused            = static_cast<int>(each.draft->size()) < each.n_max;
        trim_draft(*each.draft, *targets_[each.index], each.n_max, config_.n_min);
        routes_.trim(n_before + static_cast<int>(each.draft->size()) + 1);
    }
}

// Drafts one token after the other. Decodes and result are the same as those of common, because the draft is greedy and
// the memory carries over. But every token is known as soon as it exists. Stops before a token that the target does not
// have, that ends the generation, or that is less probable than p_min (greedy_choice), and if llama.cpp cannot evaluate
// one. common's sampler would make a list of the whole vocabulary and sort it.
llama_tokens ParallelDrafts::draft_alone(const Request & request, const std::function<void(llama_token)> & on_token) {
    auto &                   target = *targets_[request.index];
    auto &                   model  = own_experts_ != nullptr ? target : drafts_[request.index];
    std::optional<SelfDraft> pass;
    if (own_experts_ != nullptr) {
        pass.emplace(*own_experts_, target);
    }
    llama_tokens result;
    llama_token  last = request.last;
    while (static_cast<int>(result.size()) < request.n_max) {
        last = routes_.note([&] {
            return model.decode(last)
                       ? greedy_choice(llama_get_logits_ith(model.get(), -1), model.n_vocab(), config_.p_min)
                       : LLAMA_TOKEN_NULL;
        });
        if (last == LLAMA_TOKEN_NULL || last >= target.n_vocab() || llama_vocab_is_eog(target.vocab(), last)) {
            break;
        }
        result.push_back(last);
        on_token(last);
    }
    return result;
}

// Drafts for all sequences with the draft model, in one batch a token.
void ParallelDrafts::draft_at_once(const std::vector<Request> & requests) {
    bool drafts = false;
    for (const auto & each : requests) {
        if (each.last < drafts_[each.index].n_vocab()) {
            const auto pos   = static_cast<llama_pos>(each.tokens->size());
            auto &     asked = common_speculative_get_draft_params(spec_.get(), static_cast<llama_seq_id>(each.index));
            asked            = {true, each.n_max, pos, each.last, each.tokens, each.draft};
            drafts           = true;
        }
    }
    if (drafts) {
        common_speculative_draft(spec_.get());
    }
    for (const auto & each : requests) {
        auto & asked = common_speculative_get_draft_params(spec_.get(), static_cast<llama_seq_id>(each.index));
        asked.prompt = nullptr;
        asked.result = nullptr;
        // The memory has the draft's tokens but the last one. Those that are accepted need not be evaluated again.
        auto held = *each.tokens;
        held.push_back(each.last);
        held.insert(held.end(), each.draft->begin(), each.draft->end());
        drafts_[each.index].adopt(std::move(held));
        trim_draft(*each.draft, *targets_[each.index], each.n_max, config_.n_min);
    }
}

} // namespace spac
