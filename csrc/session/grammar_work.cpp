#include "session/grammar.h"

#include "../src/llama-grammar.h"
#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <utility>

// patches/0006-server.patch calls these.
void                     llama_grammar_count_steps(size_t n_elements, size_t n_stacks);
void                     llama_grammar_count_looks(size_t n);
llama_grammar_candidates llama_grammar_reject_together(const llama_grammar_rules &      rules,
                                                       const llama_grammar_stacks &     stacks,
                                                       const llama_grammar_candidates & candidates);

namespace spac {
namespace {

// The costs are those of one core, in nanoseconds, and the bytes of a stack, which is kept until the call ends.
constexpr uint64_t step_cost = 400, element_cost = 30, stack_cost = 3, call_cost = 500, look_cost = 4;
constexpr uint64_t step_bytes = 200, element_bytes = 16;
constexpr uint64_t most_bytes = 200'000'000;

// Returns the limit of a call's work. Grammars that are no attack look at every token a few times.
uint64_t most_work(const llama_vocab * vocab) {
    return 100'000'000 + 3'000 * static_cast<uint64_t>(llama_vocab_n_tokens(vocab));
}

thread_local uint64_t    call_most = UINT64_MAX, call_work = 0, call_bytes = 0, all_work = 0;
thread_local int         n_scopes = 0;
thread_local std::string fault;

void count(uint64_t work, uint64_t bytes) {
    call_work += work;
    all_work += work;
    call_bytes += bytes;
    if (call_work > call_most || call_bytes > most_bytes) {
        throw InputError("the grammar has too many alternatives at one place: for a token, they exceed the limit of " +
                         (call_work > call_most ? std::to_string(call_most / 1'000'000) + " ms"
                                                : std::to_string(most_bytes / 1'000'000) + " MB"));
    }
}

thread_local llama_grammar * applied = nullptr; // the grammar whose next tokens are looked at

bool takes_tokens(const llama_grammar_stack & stack) {
    return stack.back()->type == LLAMA_GRETYPE_TOKEN || stack.back()->type == LLAMA_GRETYPE_TOKEN_NOT;
}

bool takes(const llama_grammar_stack & stack, uint32_t character) {
    const auto * element = stack.back();
    const bool   allows  = element->type != LLAMA_GRETYPE_CHAR_NOT;
    bool         found   = element->type == LLAMA_GRETYPE_CHAR_ANY;
    do {
        const bool is_range = element[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        const auto last     = element[is_range ? 1 : 0].value;
        found               = found || (element->value <= character && character <= last);
        element += is_range ? 2 : 1;
    } while (element->type == LLAMA_GRETYPE_CHAR_ALT);
    return found == allows;
}

// Returns the stacks behind a character.
llama_grammar_stacks behind(const llama_grammar_stacks & stacks, uint32_t character) {
    count(call_cost + look_cost * stacks.size(), 0);
    llama_grammar_stacks some;
    std::copy_if(stacks.begin(), stacks.end(), std::back_inserter(some),
                 [&](const auto & stack) { return takes(stack, character); });
    some.swap(applied->stacks);
    try {
        llama_grammar_accept(applied, character);
    } catch (...) {
        some.swap(applied->stacks);
        throw;
    }
    some.swap(applied->stacks);
    return some;
}

// Returns the candidates that no stack allows. llama.cpp looks at each of them for each stack, which are as many as the
// values of an enum. Here, those that begin with the same character go on together, from all stacks.
llama_grammar_candidates reject(const llama_grammar_rules & rules, const llama_grammar_stacks & stacks,
                                const llama_grammar_candidates & candidates) {
    constexpr size_t         few = 8;
    llama_grammar_stacks     others;
    llama_grammar_candidates left = candidates, rejects;
    for (const auto & stack : stacks) {
        if (stacks.size() > few && !stack.empty() && !takes_tokens(stack)) {
            others.push_back(stack);
        } else {
            left = llama_grammar_reject_candidates_for_stack(rules, stack, left);
        }
    }
    if (others.empty()) {
        return left;
    }
    count(call_cost + 4 * look_cost * left.size(), 0);
    std::sort(left.begin(), left.end(),
              [](const auto & one, const auto & other) { return *one.code_points < *other.code_points; });
    for (auto begin = left.begin(), end = begin; begin != left.end(); begin = end) {
        const uint32_t character = *begin->code_points;
        end = std::find_if(begin, left.end(), [&](const auto & each) { return *each.code_points != character; });
        llama_grammar_candidates alike(begin, end);
        if (character == 0) { // the end, or a part of a character
            for (size_t i = 0; i < others.size() && !alike.empty(); ++i) {
                alike = llama_grammar_reject_candidates_for_stack(rules, others[i], alike);
            }
        } else if (const auto next = behind(others, character); !next.empty()) {
            for (auto & each : alike) {
                ++each.code_points;
            }
            alike = reject(rules, next, alike);
            for (auto & each : alike) {
                --each.code_points;
            }
        }
        rejects.insert(rejects.end(), alike.begin(), alike.end());
    }
    return rejects;
}

bool has_end(const llama_grammar & grammar) {
    return std::any_of(grammar.stacks.begin(), grammar.stacks.end(), [](const auto & stack) { return stack.empty(); });
}

// Makes one call of llama.cpp's. Returns true if it ended well.
template <typename Call> bool limited(const llama_vocab * vocab, Call && call) {
    call_most  = most_work(vocab);
    call_work  = 0;
    call_bytes = 0;
    try {
        call();
        return true;
    } catch (const std::exception & error) {
        if (n_scopes > 0) {
            throw;
        }
        if (fault.empty()) { // Later faults follow from the first one.
            fault = error.what();
        }
        return false;
    }
}

[[noreturn]] void refuse_dead_end() {
    throw InputError("the grammar has no way on: no token of the vocabulary fits it here, and the text may not end");
}

} // namespace

GrammarScope::GrammarScope() : before_(all_work) { ++n_scopes; }
GrammarScope::~GrammarScope() { --n_scopes; }
uint64_t GrammarScope::work() const { return all_work - before_; }

void GrammarBudget::spend(uint64_t work, size_t n_tokens) {
    constexpr uint64_t each = 20'000'000;
    work_ += work - std::min(work + work_, each * n_tokens);
}

void GrammarBudget::check(const llama_vocab * vocab) const {
    if (work_ > 8 * most_work(vocab)) {
        throw InputError("the grammar takes too long for this text: it has too many alternatives at each place");
    }
}

std::string take_grammar_fault() { return std::exchange(fault, {}); }

} // namespace spac

// The linker sends the calls of llama.cpp's samplers here (--wrap), and calls of the __real_ names to llama.cpp's
// functions.
#define SPAC_APPLY(prefix)  prefix##_Z24llama_grammar_apply_implRK13llama_grammarP22llama_token_data_array
#define SPAC_ACCEPT(prefix) prefix##_Z25llama_grammar_accept_implR13llama_grammari
#define SPAC_INIT(prefix)   prefix##_Z23llama_grammar_init_implPK11llama_vocabPKcS3_bPS3_mPKim

extern "C" {
void            SPAC_APPLY(__real_)(const llama_grammar & grammar, llama_token_data_array * tokens);
void            SPAC_APPLY(__wrap_)(const llama_grammar & grammar, llama_token_data_array * tokens);
void            SPAC_ACCEPT(__real_)(llama_grammar & grammar, llama_token token);
void            SPAC_ACCEPT(__wrap_)(llama_grammar & grammar, llama_token token);
llama_grammar * SPAC_INIT(__real_)(const llama_vocab * vocab, const char * text, const char * root, bool lazy,
                                   const char ** patterns, size_t n_patterns, const llama_token * tokens,
                                   size_t n_tokens);
llama_grammar * SPAC_INIT(__wrap_)(const llama_vocab * vocab, const char * text, const char * root, bool lazy,
                                   const char ** patterns, size_t n_patterns, const llama_token * tokens,
                                   size_t n_tokens);
}

void SPAC_APPLY(__wrap_)(const llama_grammar & grammar, llama_token_data_array * tokens) {
    const bool is_well = spac::limited(grammar.vocab, [&] {
        if (grammar.stacks.empty()) { // llama.cpp would abort
            spac::refuse_dead_end();
        }
        spac::applied = const_cast<llama_grammar *>(&grammar);
        SPAC_APPLY(__real_)(grammar, tokens);
    });
    for (size_t i = 0; !is_well && i < tokens->size; ++i) {
        auto & token = tokens->data[i];
        token.logit  = llama_vocab_is_eog(grammar.vocab, token.id) ? 0.0f : -INFINITY;
    }
}

void SPAC_ACCEPT(__wrap_)(llama_grammar & grammar, llama_token token) {
    spac::limited(grammar.vocab, [&] {
        const bool is_end = llama_vocab_is_eog(grammar.vocab, token) && !grammar.awaiting_trigger;
        if (is_end && !spac::has_end(grammar)) { // llama.cpp would abort
            spac::refuse_dead_end();
        }
        try {
            SPAC_ACCEPT(__real_)(grammar, token);
        } catch (const spac::InputError &) {
            throw;
        } catch (const std::exception &) {
            spac::refuse_dead_end();
        }
    });
}

llama_grammar * SPAC_INIT(__wrap_)(const llama_vocab * vocab, const char * text, const char * root, bool lazy,
                                   const char ** patterns, size_t n_patterns, const llama_token * tokens,
                                   size_t n_tokens) {
    llama_grammar * grammar = nullptr;
    spac::limited(
        vocab, [&] { grammar = SPAC_INIT(__real_)(vocab, text, root, lazy, patterns, n_patterns, tokens, n_tokens); });
    return grammar;
}

void llama_grammar_count_steps(size_t n_elements, size_t n_stacks) {
    spac::count(spac::step_cost + spac::element_cost * n_elements + spac::stack_cost * n_stacks,
                spac::step_bytes + spac::element_bytes * n_elements);
}

void llama_grammar_count_looks(size_t n) { spac::count(spac::call_cost + spac::look_cost * n, 0); }

llama_grammar_candidates llama_grammar_reject_together(const llama_grammar_rules &      rules,
                                                       const llama_grammar_stacks &     stacks,
                                                       const llama_grammar_candidates & candidates) {
    return spac::reject(rules, stacks, candidates);
}
