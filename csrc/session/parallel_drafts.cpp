#include "session/parallel_impl.h"

#include "session/interrupt.h"
#include "session/speculator.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace spac {

namespace {

// Returns how many tokens all sequences of a context hold together.
int capacity_of(llama_context * ctx) {
    return shares_cells(ctx) ? static_cast<int>(llama_n_ctx(ctx)) : std::numeric_limits<int>::max();
}

} // namespace

ParallelDrafts::ParallelDrafts(const DraftConfig & config, const std::vector<Context *> & targets,
                               llama_context * draft_ctx, Interrupt & interrupt,
                               const std::shared_ptr<Experts> & draft_experts)
    : config_(config), targets_(targets), interrupt_(interrupt), routes_(draft_experts),
      params_(speculative_params(config)) {
    if (drafts_itself(config)) {
        check_self_draft(*targets_.front(), draft_experts);
        capacity_ = capacity_of(targets_.front()->get());
        for (auto * const target : targets_) {
            selves_.emplace_back(*target, draft_experts, config.p_min, interrupt);
        }
        return;
    }
    const auto type = draft_model_type(params_.types);
    if (!type) {
        for (auto * target : targets_) {
            lookups_.push_back(std::make_unique<Speculator>(config, *target, nullptr, nullptr, interrupt));
        }
        return;
    }
    if (*type != COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE || params_.types.size() > 1) {
        throw InputError("several sequences draft with draft-simple alone or with n-grams, not with " +
                         common_speculative_type_name_str(params_.types));
    }
    const int n_seq = static_cast<int>(targets_.size());
    check_draft_context(type, *targets_.front(), draft_ctx, config.n_max, n_seq);
    params_.draft.ctx_tgt = targets_.front()->get();
    params_.draft.ctx_dft = draft_ctx;
    llama_memory_clear(llama_get_memory(draft_ctx), false);
    capacity_ = capacity_of(draft_ctx);
    for (int i = 0; i < n_seq; ++i) {
        drafts_.emplace_back(draft_ctx, "draft", static_cast<llama_seq_id>(i));
    }
    try {
        spec_.reset(common_speculative_init(params_, static_cast<uint32_t>(n_seq)));
    } catch (const std::exception & error) {
        throw InputError(std::string("speculation cannot start: ") + error.what());
    }
    interrupt_.attach(draft_ctx);
}

ParallelDrafts::~ParallelDrafts() {
    spec_.reset(); // its end may still take samplers out of the draft context
    if (!drafts_.empty()) {
        interrupt_.detach(drafts_.front().get());
    }
}

// Returns the tokens in the draft model's memory.
int ParallelDrafts::n_used() const {
    return std::accumulate(drafts_.begin(), drafts_.end(), 0,
                           [](int n, const auto & each) { return n + each.n_past(); });
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
        drafts_[each.index].keep_prefix(*each.tokens, size);
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
    const int    n_batch = drafts_.front().n_batch();
    common_batch batch(ctx);
    const auto   flush = [&] {
        if (batch.size() > 0 && !common_speculative_process(spec_.get(), batch)) {
            for (auto & each : drafts_) {
                each.trim(each.n_past());
            }
            interrupt_.raise_if_stopped();
            throw DeviceError("llama.cpp could not evaluate " + std::to_string(batch.size()) +
                                " tokens on the draft context");
        }
        batch.clear();
    };
    for (const auto & request : requests) {
        auto &       draft  = drafts_[request.index];
        const auto & tokens = *request.tokens;
        draft.keep_prefix(tokens, static_cast<int>(tokens.size()));
        for (int pos = draft.n_past(); pos < static_cast<int>(tokens.size()); ++pos) {
            // Ids that the draft model does not have are replaced, as Speculator does.
            const auto token = tokens[static_cast<size_t>(pos)];
            batch.add(token < n_vocab ? token : 0, pos, draft.seq_id(), false);
            if (batch.size() == n_batch) {
                flush();
                draft.adopt(llama_tokens(tokens.begin(), tokens.begin() + pos + 1));
                interrupt_.raise_if_stopped();
            }
        }
    }
    flush();
    for (const auto & request : requests) {
        drafts_[request.index].adopt(*request.tokens);
    }
}

void ParallelDrafts::keep_routes(bool keeps) {
    if (keeps && !routes_.can_keep()) {
        throw InputError("the draft's routes need the draft model's experts");
    }
    routes_.keep(keeps);
}

void ParallelDrafts::draft(const std::vector<Request> & requests, const OnToken & on_token) {
    for (const auto & each : requests) {
        each.draft->clear();
    }
    if (!lookups_.empty()) {
        for (const auto & each : requests) {
            auto & lookup = *lookups_[each.index];
            *each.draft   = lookup.draft(*each.tokens, each.last, std::min(each.n_max, lookup.n_max()), on_token);
        }
        return;
    }
    routes_.begin();
    if (!selves_.empty()) {
        draft_by_turns(requests, on_token);
        return;
    }
    const auto fitting = that_fit(requests);
    feed(fitting);
    if (on_token || routes_.get() != nullptr || fitting.size() == 1) {
        draft_by_turns(fitting, on_token);
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
    auto & target = selves_[request.index].target();
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
void ParallelDrafts::draft_by_turns(const std::vector<Request> & requests, const OnToken & on_token) {
    int        n_evaluated = 0;
    bool       refused     = false; // true: the last draft ended at a token that it refused
    const auto note        = [&](llama_token token, int) {
        if (on_token) {
            on_token(token, n_evaluated++);
        }
    };
    for (const auto & each : requests) {
        if (selves_.empty() ? each.last >= drafts_[each.index].n_vocab() : !tell(each)) {
            continue;
        }
        if (refused) {
            note(LLAMA_TOKEN_NULL, 0);
        }
        const int n_before = routes_.size();
        *each.draft        = selves_.empty() ? draft_stepwise(drafts_[each.index], *targets_[each.index], each.last,
                                                              each.n_max, config_.p_min, routes_, interrupt_, note)
                                             : selves_[each.index].draft(each.last, each.n_max, routes_, note);
        refused            = static_cast<int>(each.draft->size()) < each.n_max;
        trim_draft(*each.draft, *targets_[each.index], each.n_max, config_.n_min);
        routes_.trim(n_before + static_cast<int>(each.draft->size()) + 1);
    }
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
    interrupt_.raise_if_stopped();
}

void ParallelDrafts::accept(size_t index, int n, const llama_tokens & tokens) {
    if (!lookups_.empty()) {
        lookups_[index]->accept(n, tokens);
    }
}

} // namespace spac
