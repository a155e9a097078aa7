#include "session/grammar.h"

#include "../src/llama-grammar.h"
#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

void llama_grammar_count_steps(size_t n_elements, size_t n_stacks); // patches/0006-server.patch calls these
void llama_grammar_count_looks(size_t n);

namespace spac {
namespace {

// The costs are those of one core, in nanoseconds, and the bytes of a stack, which is kept until the call ends.
constexpr uint64_t step_cost = 400, element_cost = 30, stack_cost = 3, call_cost = 500, look_cost = 4;
constexpr uint64_t step_bytes = 200, element_bytes = 16;
constexpr uint64_t most_work = 500'000'000, most_bytes = 200'000'000;

thread_local uint64_t    call_work = 0, call_bytes = 0, all_work = 0;
thread_local int         n_scopes = 0;
thread_local std::string fault;

void count(uint64_t work, uint64_t bytes) {
    call_work += work;
    all_work += work;
    call_bytes += bytes;
    if (call_work > most_work || call_bytes > most_bytes) {
        throw InputError(
            "the grammar has too many alternatives at one place: for a token, they exceed the limit of " +
            (call_work > most_work ? std::string("0.5 s") : std::to_string(most_bytes / 1'000'000) + " MB"));
    }
}

bool has_end(const llama_grammar & grammar) {
    return std::any_of(grammar.stacks.begin(), grammar.stacks.end(), [](const auto & stack) { return stack.empty(); });
}

// Makes one call of llama.cpp's. Returns true if it ended well.
template <typename Call> bool limited(Call && call) {
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

void GrammarBudget::check() const {
    constexpr uint64_t once = 4'000'000'000;
    if (work_ > once) {
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
    const bool is_well = spac::limited([&] {
        if (grammar.stacks.empty()) { // llama.cpp would abort
            spac::refuse_dead_end();
        }
        SPAC_APPLY(__real_)(grammar, tokens);
    });
    for (size_t i = 0; !is_well && i < tokens->size; ++i) {
        auto & token = tokens->data[i];
        token.logit  = llama_vocab_is_eog(grammar.vocab, token.id) ? 0.0f : -INFINITY;
    }
}

void SPAC_ACCEPT(__wrap_)(llama_grammar & grammar, llama_token token) {
    spac::limited([&] {
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
        [&] { grammar = SPAC_INIT(__real_)(vocab, text, root, lazy, patterns, n_patterns, tokens, n_tokens); });
    return grammar;
}

void llama_grammar_count_steps(size_t n_elements, size_t n_stacks) {
    spac::count(spac::step_cost + spac::element_cost * n_elements + spac::stack_cost * n_stacks,
                spac::step_bytes + spac::element_bytes * n_elements);
}

void llama_grammar_count_looks(size_t n) { spac::count(spac::call_cost + spac::look_cost * n, 0); }
