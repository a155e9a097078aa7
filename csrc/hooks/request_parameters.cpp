// The parameters of requests to llama.cpp's server, as a thread that serves one reads them. The linker's --wrap leads
// llama.cpp's parser here (csrc/CMakeLists.txt).
//
// The server keeps what a slot holds when a request without scales of adapters follows one with other scales, though it
// was computed with those. So each request gets scales here.
#include "hooks/request_settings.h"

#include "server-common.h"
#include "server-schema.h"
#include "session/grammar.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace {

// Checks a grammar in the thread that serves its request, while the loop goes on. One at a time is checked, so that the
// loop has the other cores.
void check(const llama_vocab * vocab, const common_params_sampling & sampling) {
    static std::mutex                                  one_at_a_time;
    static std::pair<const llama_vocab *, std::string> last; // a request of many prompts asks for each of them
    const std::lock_guard                              hold(one_at_a_time);
    const auto &                                       text = common_grammar_value(sampling.grammar);
    if (last.first != vocab || last.second != text) {
        spac::check_grammar(vocab, text, sampling.grammar.type == COMMON_GRAMMAR_TYPE_USER);
        last = {vocab, text};
    }
}

// These fields are Anthropic's. The conversion has read them, or nothing here has a meaning for them.
const std::set<std::string> anthropic = {
    "container",     "context_management", "inference_geo", "max_tokens",     "mcp_servers", "messages", "metadata",
    "output_config", "output_format",      "service_tier",  "stop_sequences", "system",      "thinking", "tools",
    "tool_choice",
};

} // namespace

extern "C" {
task_params
__real__ZN13server_schema22eval_llama_cmpl_schemaEPK11llama_vocabRK13common_paramsRKSt6vectorI16llama_logit_biasSaIS7_EERK11common_json(
    const llama_vocab * vocab, const common_params & params, const std::vector<llama_logit_bias> & biases,
    const json & body);

task_params
__wrap__ZN13server_schema22eval_llama_cmpl_schemaEPK11llama_vocabRK13common_paramsRKSt6vectorI16llama_logit_biasSaIS7_EERK11common_json(
    const llama_vocab * vocab, const common_params & params, const std::vector<llama_logit_bias> & biases,
    const json & body) {
    auto task =
        __real__ZN13server_schema22eval_llama_cmpl_schemaEPK11llama_vocabRK13common_paramsRKSt6vectorI16llama_logit_biasSaIS7_EERK11common_json(
            vocab, params, biases, body);
    if (!task.sampling.grammar.empty()) {
        check(vocab, task.sampling);
    }
    const auto * const settings = spac::RequestSettings::current();
    if (task.lora.empty() && settings != nullptr) {
        task.lora = settings->adapter_scales();
    }
    return task;
}

// llama.cpp's conversion of a request of Anthropic's Messages to a chat takes five fields, and passes over all other
// ones: grammar, seed, min_p, …
json __real__Z36server_chat_convert_anthropic_to_oaiRK11common_json(const json & body);

json __wrap__Z36server_chat_convert_anthropic_to_oaiRK11common_json(const json & body) {
    json chat = __real__Z36server_chat_convert_anthropic_to_oaiRK11common_json(body);
    for (const auto & item : body.items()) {
        if (!chat.contains(item.key()) && anthropic.count(item.key()) == 0) {
            chat[item.key()] = item.value();
        }
    }
    return chat;
}
}
