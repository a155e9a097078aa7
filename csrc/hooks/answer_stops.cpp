#include "hooks/answer_stops.h"

#include "chat.h"

#include <algorithm>
#include <exception>

namespace spac {

namespace {

// Returns whether a stop string that begins at `at` ends an answer. It does not in reasoning, and neither does white
// space between reasoning and answer.
bool ends_an_answer(const std::string & text, size_t at, const std::string & stop,
                    const common_chat_parser_params & parser) {
    const auto is_blank = [](const common_chat_msg & message) {
        return message.content.find_first_not_of(" \t\r\n") == std::string::npos && message.tool_calls.empty();
    };
    try {
        // A letter behind a tag that opens reasoning is reasoning.
        const common_chat_msg now = common_chat_parse(text + "x", true, parser);
        return now.reasoning_content.empty() ||
               (!is_blank(now) && !is_blank(common_chat_parse(text.substr(0, at) + stop, true, parser)));
    } catch (const std::exception &) { // a text that is no chat
        return true;
    }
}

} // namespace

const std::vector<std::string> & counted_stops(const task_params & params, const std::string & generated,
                                               const std::string & unsent) {
    static const std::vector<std::string> none;

    const common_chat_parser_params & parser = params.chat_parser_params;
    if (parser.reasoning_format == COMMON_REASONING_FORMAT_NONE) {
        return params.antiprompt;
    }
    bool         is_met = false;
    const size_t begin  = generated.size() - std::min(generated.size(), unsent.size());
    for (const std::string & stop : params.antiprompt) {
        const size_t at = unsent.find(stop);
        if (at == std::string::npos) {
            continue;
        }
        if (ends_an_answer(generated, begin + at, stop, parser)) {
            return params.antiprompt;
        }
        is_met = true;
    }
    return is_met ? none : params.antiprompt;
}

} // namespace spac
