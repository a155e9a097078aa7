#include "hooks/request_adapters.h"

#include "hooks/own_requests.h"
#include "server-common.h"
#include "server-schema.h"

#include <map>
#include <mutex>

namespace spac {

namespace {

std::mutex           lock; // of what follows
std::map<int, float> scales_by_adapter;

std::map<int, float> default_scales() {
    const std::lock_guard hold(lock);
    return scales_by_adapter;
}

} // namespace

void set_adapter_scales(const std::vector<float> & scales) {
    const std::lock_guard hold(lock);
    scales_by_adapter.clear();
    for (size_t i = 0; i < scales.size(); ++i) {
        scales_by_adapter[static_cast<int>(i)] = scales[i];
    }
}

void set_adapter_scales(const std::string & body) {
    const auto            given = parse_lora_request(json::parse(body));
    const std::lock_guard hold(lock);
    for (auto & [adapter, scale] : scales_by_adapter) {
        const auto found = given.find(adapter);
        scale            = found == given.end() ? 0.0f : found->second;
    }
}

} // namespace spac

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
    if (task.lora.empty()) {
        task.lora = spac::default_scales();
    }
    if (const auto * const own = spac::OwnRequest::read()) {
        task.sampling = *own;
    }
    return task;
}
}
