// The functions of llama.cpp that the linker leads to LoopHooks.
#include "hooks/loop_hooks.h"

#include "../src/llama-batch.h" // for the tokens of a batch, which no public function returns
#include "server-common.h"
#include "server-queue.h"
#include "session/token_sampler.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using spac::LoopHooks;

namespace {

// Asks for the logits of the last `n` tokens of each prompt that ends in a batch. Returns the number of further rows.
int with_rows(llama_batch_ext & batch, const spac::LoopWindows & windows, int n) {
    int    n_more = 0;
    size_t end    = 0;
    for (const auto & [sequence, n_tokens] : windows) {
        end += static_cast<size_t>(n_tokens);
        for (int i = 1; i < std::min(n, n_tokens) && batch.tokens[end - 1].output; ++i) {
            auto & token = batch.tokens[end - 1 - static_cast<size_t>(i)];
            n_more += token.output ? 0 : 1;
            token.output = true;
        }
    }
    return n_more;
}

constexpr auto incomplete = "incomplete";

class CutResponse : public server_task_result_cmpl_final {
  public:
    explicit CutResponse(server_task_result_cmpl_final && result) : server_task_result_cmpl_final(std::move(result)) {}

    json to_json() override {
        json told = server_task_result_cmpl_final::to_json();
        if (!stream) {
            mark(told);
            return told;
        }
        json & end           = told.back();
        end["event"]         = "response.incomplete";
        end["data"]["type"]  = "response.incomplete";
        const bool has_items = mark(end["data"]["response"]);
        if (has_items) { // the event before tells the last item
            told.at(told.size() - 2)["data"]["item"]["status"] = incomplete;
        }
        return told;
    }

  private:
    // Marks a response and its last item. Returns true if it has items.
    static bool mark(json & response) {
        response["status"]             = incomplete;
        response["incomplete_details"] = json{{"reason", "max_output_tokens"}};
        json &     output              = response["output"];
        const bool has_items           = !output.empty();
        if (has_items) {
            output.back()["status"] = incomplete;
        }
        return has_items;
    }
};

// Lets a result of Responses say that its limit ended it, as OpenAI's do. llama.cpp's JSON says "completed".
void tell_cut_response(server_task_result_ptr & result) {
    auto * const end = dynamic_cast<server_task_result_cmpl_final *>(result.get());
    if (end != nullptr && end->res_type == TASK_RESPONSE_TYPE_OAI_RESP && end->stop == STOP_TYPE_LIMIT) {
        result = std::make_unique<CutResponse>(std::move(*end));
    }
}

// Returns true if a text ends with a whole character, or is empty.
bool ends_whole(const std::string & text, size_t end) {
    size_t n = 0; // bytes behind the first one of the last character
    while (n < 3 && n < end && (text[end - 1 - n] & 0xC0) == 0x80) {
        ++n;
    }
    if (end <= n) {
        return end == 0;
    }
    const auto first = static_cast<unsigned char>(text[end - 1 - n]);
    return n == (first < 0x80 ? 0U : first >= 0xF0 ? 3U : first >= 0xE0 ? 2U : 1U);
}

} // namespace

// The linker calls these in place of llama.cpp's functions.
extern "C" {
int32_t __real_llama_process(llama_context * ctx, llama_process_type type, llama_batch_ext * batch);

int32_t __wrap_llama_process(llama_context * ctx, llama_process_type type, llama_batch_ext * batch) {
    const auto   run   = [&] { return __real_llama_process(ctx, type, batch); };
    auto * const hooks = LoopHooks::current();
    if (hooks == nullptr || type != LLAMA_PROCESS_TYPE_DECODE) {
        return run();
    }
    std::set<llama_seq_id> asking;
    spac::LoopWindows      windows;
    int                    n_outputs = 0;
    for (const auto & token : batch->tokens) {
        const llama_seq_id sequence = *token.seq_ids.begin();
        if (windows.empty() || windows.back().first != sequence) {
            windows.emplace_back(sequence, 0);
        }
        ++windows.back().second;
        if (token.output) {
            asking.insert(token.seq_ids.begin(), token.seq_ids.end());
            ++n_outputs;
        }
    }
    const int n_rows = n_outputs + with_rows(*batch, windows, ctx == hooks->target() ? hooks->n_scored() : 0);
    return hooks->decode(ctx, run, n_outputs, static_cast<int>(asking.size()), n_rows, std::move(windows));
}

common_json __real__Z21format_error_responseRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE10error_type(
    const std::string & message, error_type type);

common_json __wrap__Z21format_error_responseRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE10error_type(
    const std::string & message, error_type type) {
    const auto [cause, kind] = LoopHooks::error_of(message, type);
    return __real__Z21format_error_responseRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE10error_type(cause,
                                                                                                              kind);
}

void __real__ZN15server_response4sendEOSt10unique_ptrI18server_task_resultSt14default_deleteIS1_EE(
    server_response * results, server_task_result_ptr && result);

// Nobody makes JSON of what a text of this process has.
void __wrap__ZN15server_response4sendEOSt10unique_ptrI18server_task_resultSt14default_deleteIS1_EE(
    server_response * results, server_task_result_ptr && result) {
    if (const auto own = spac::OwnRequest::of(*results, result->id)) {
        own->tell(*result);
    } else {
        tell_cut_response(result);
        __real__ZN15server_response4sendEOSt10unique_ptrI18server_task_resultSt14default_deleteIS1_EE(
            results, std::move(result));
    }
}

void __real__ZN12server_queue14yield_to_queueEOSt8functionIFvvEE(server_queue * queue, std::function<void()> && work);

// While llama.cpp's loop drafts or decodes, another thread answers what asks for metrics, and each time the loop wakes
// this thread and waits for it. In a short step, such a question waits for the end of the step instead.
void __wrap__ZN12server_queue14yield_to_queueEOSt8functionIFvvEE(server_queue * queue, std::function<void()> && work) {
    const auto * const hooks = LoopHooks::current();
    if (hooks != nullptr && hooks->is_stepping()) {
        work();
    } else {
        __real__ZN12server_queue14yield_to_queueEOSt8functionIFvvEE(queue, std::move(work));
    }
}

void __real__Z24common_speculative_draftP18common_speculative(common_speculative * spec);

void __wrap__Z24common_speculative_draftP18common_speculative(common_speculative * spec) {
    const auto run = [&] { __real__Z24common_speculative_draftP18common_speculative(spec); };
    if (auto * const hooks = LoopHooks::current()) {
        hooks->draft(spec, run);
    } else {
        run();
    }
}

void __real__Z25common_speculative_acceptP18common_speculativeit(common_speculative * spec, llama_seq_id slot,
                                                                 uint16_t n);

void __wrap__Z25common_speculative_acceptP18common_speculativeit(common_speculative * spec, llama_seq_id slot,
                                                                 uint16_t n) {
    auto * const hooks = LoopHooks::current();
    if (hooks == nullptr || !hooks->accept()) {
        __real__Z25common_speculative_acceptP18common_speculativeit(spec, slot, n);
    }
}

common_sampler *
__real__Z19common_sampler_initPK11llama_modelR22common_params_sampling(const llama_model *      model,
                                                                       common_params_sampling & params);

common_sampler *
__wrap__Z19common_sampler_initPK11llama_modelR22common_params_sampling(const llama_model *      model,
                                                                       common_params_sampling & params) {
    auto * const hooks = LoopHooks::current();
    if (hooks == nullptr) {
        return __real__Z19common_sampler_initPK11llama_modelR22common_params_sampling(model, params);
    }
    hooks->bound(params);
    common_sampler * sampler = nullptr;
    try {
        sampler = __real__Z19common_sampler_initPK11llama_modelR22common_params_sampling(model, params);
    } catch (const std::exception & error) {
        // common loses the grammar's message about the beginning of an answer.
        const bool begins = !params.generation_prompt.empty() && !params.grammar_lazy &&
                            common_grammar_needs_prefill(params.grammar) &&
                            error.what() == std::string("std::exception");
        throw spac::InputError(begins ? "the answer begins with what its schema or its tools do not allow"
                                      : std::string("the sampler cannot be made: ") + error.what());
    }
    const auto request = spac::OwnRequest::of(params);
    if (request != nullptr && request->mirostat_penalizes()) {
        spac::add_penalties(sampler, model, params);
    }
    hooks->add(sampler, params);
    return sampler;
}

common_sampler * __real__Z20common_sampler_cloneP14common_sampler(common_sampler * sampler);

common_sampler * __wrap__Z20common_sampler_cloneP14common_sampler(common_sampler * sampler) {
    auto * const copied = __real__Z20common_sampler_cloneP14common_sampler(sampler);
    if (auto * const hooks = LoopHooks::current()) {
        hooks->copy(sampler, copied);
    }
    return copied;
}

void __real__Z19common_sampler_freeP14common_sampler(common_sampler * sampler);

void __wrap__Z19common_sampler_freeP14common_sampler(common_sampler * sampler) {
    if (auto * const hooks = LoopHooks::current()) {
        hooks->remove(sampler);
    }
    __real__Z19common_sampler_freeP14common_sampler(sampler);
}

void __real__Z21common_sampler_acceptP14common_samplerib(common_sampler * sampler, llama_token token,
                                                         bool is_generated);

void __wrap__Z21common_sampler_acceptP14common_samplerib(common_sampler * sampler, llama_token token,
                                                         bool is_generated) {
    auto * const hooks = LoopHooks::current();
    if (is_generated || hooks == nullptr || !hooks->skips(sampler)) {
        __real__Z21common_sampler_acceptP14common_samplerib(sampler, token, is_generated);
    }
}

llama_token __real__Z21common_sampler_sampleP14common_samplerP13llama_contextib(common_sampler * sampler,
                                                                                llama_context * ctx, int row,
                                                                                bool first);

llama_token __wrap__Z21common_sampler_sampleP14common_samplerP13llama_contextib(common_sampler * sampler,
                                                                                llama_context * ctx, int row,
                                                                                bool first) {
    const auto run = [&] {
        return __real__Z21common_sampler_sampleP14common_samplerP13llama_contextib(sampler, ctx, row, first);
    };
    auto * const hooks = LoopHooks::current();
    if (hooks == nullptr) {
        return run();
    }
    llama_token token = hooks->sampling(ctx, sampler, row) ? spac::greedy_token(ctx, row) : -1;
    if (token < 0) {
        token = run();
    }
    hooks->sampled(ctx, {token}, 0, row);
    return token;
}

llama_tokens __real__Z34common_sampler_sample_and_accept_nP14common_samplerP13llama_contextRKSt6vectorIiSaIiEES7_b(
    common_sampler * sampler, llama_context * ctx, const std::vector<int> & rows, const llama_tokens & draft,
    bool first);

llama_tokens __wrap__Z34common_sampler_sample_and_accept_nP14common_samplerP13llama_contextRKSt6vectorIiSaIiEES7_b(
    common_sampler * sampler, llama_context * ctx, const std::vector<int> & rows, const llama_tokens & draft,
    bool first) {
    const auto run = [&] {
        return __real__Z34common_sampler_sample_and_accept_nP14common_samplerP13llama_contextRKSt6vectorIiSaIiEES7_b(
            sampler, ctx, rows, draft, first);
    };
    auto * const hooks = LoopHooks::current();
    if (hooks == nullptr) {
        return run();
    }
    llama_tokens tokens;
    if (hooks->sampling(ctx, sampler, rows[0])) {
        const auto * const vocab = llama_model_get_vocab(llama_get_model(ctx));
        tokens                   = spac::sample_draft(sampler, vocab, draft, [&](size_t i) {
            const llama_token token = spac::greedy_token(ctx, rows[i]);
            return token >= 0 ? token
                                                : __real__Z21common_sampler_sampleP14common_samplerP13llama_contextib(sampler, ctx,
                                                                                                                      rows[i], first);
        });
    } else {
        tokens = run();
    }
    hooks->sampled(ctx, tokens, static_cast<int>(draft.size()), rows[0]);
    return tokens;
}
}

// A text that can no longer become UTF-8 is sent. llama.cpp's server holds a text back while its last bytes may begin a
// character, and a model that says such bytes again and again would send nothing.
#define SPAC_VALIDATE(prefix) prefix##_Z13validate_utf8RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE

extern "C" {
size_t SPAC_VALIDATE(__real_)(const std::string & text);
size_t SPAC_VALIDATE(__wrap_)(const std::string & text);
}

size_t SPAC_VALIDATE(__wrap_)(const std::string & text) {
    const size_t n = SPAC_VALIDATE(__real_)(text);
    return n == text.size() || ends_whole(text, n) ? n : text.size();
}
