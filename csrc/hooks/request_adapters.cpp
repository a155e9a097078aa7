// The scales of adapters in requests to llama.cpp's server that name none.
//
// The server keeps what a slot holds when a request without scales follows one with other scales, though it was
// computed with those. So each request gets scales here. The linker's --wrap leads llama.cpp's parser here
// (csrc/CMakeLists.txt).
#include "hooks/request_settings.h"
#include "server-common.h"
#include "server-schema.h"

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
    const auto * const settings = spac::RequestSettings::current();
    if (task.lora.empty() && settings != nullptr) {
        task.lora = settings->adapter_scales();
    }
    return task;
}
}
