// Fields of llama-server's completions in requests of Anthropic's Messages.
//
// llama.cpp's conversion of such a request to a chat takes five fields, and passes over all other ones: grammar, seed,
// min_p, … The linker's --wrap leads the conversion here (csrc/CMakeLists.txt).
#include "server-common.h"

#include <set>
#include <string>

namespace {

// These fields are Anthropic's. The conversion has read them, or nothing here has a meaning for them.
const std::set<std::string> anthropic = {
    "container",     "context_management", "inference_geo", "max_tokens",     "mcp_servers", "messages", "metadata",
    "output_config", "output_format",      "service_tier",  "stop_sequences", "system",      "thinking", "tools",
    "tool_choice",
};

} // namespace

extern "C" {
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
