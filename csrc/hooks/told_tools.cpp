#include "hooks/told_tools.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"
#include "json.h"

#include <string>
#include <utility>
#include <vector>

namespace spac {

namespace {

constexpr auto begin_call = "<tool_call>", end_call = "</tool_call>";

// Returns the text that tells a model of its tools.
std::string description(const common_json & tools, bool is_required) {
    std::string text = "You can call functions. A call is one JSON object with a name and arguments, between tags:\n";
    text += std::string(begin_call) + "{\"name\": \"…\", \"arguments\": {…}}" + end_call + "\n";
    text += is_required ? "Answer with a call. " : "Call one only if you need it. ";
    text += "Its result comes in the next message. These are the functions, with the JSON schemas of their "
            "arguments:\n";
    for (const auto & tool : tools) {
        text += tool.at("function").dump() + "\n";
    }
    return text;
}

void add_text(common_chat_msg & message, const std::string & text) {
    if (!message.content_parts.empty()) {
        message.content_parts.push_back({"text", text});
    } else {
        message.content += (message.content.empty() ? "" : "\n\n") + text;
    }
}

std::string text_of(const common_chat_tool_call & call) {
    common_json arguments = call.arguments;
    try {
        arguments = common_json::parse(call.arguments);
    } catch (const std::exception &) { // a call that was cut
    }
    const common_json object = {{"name", call.name}, {"arguments", arguments}};
    return begin_call + object.dump() + end_call;
}

// Makes calls and results text. Results and what the user says behind them are one message, because templates may want
// the roles in turns.
std::vector<common_chat_msg> as_text(const std::vector<common_chat_msg> & messages) {
    std::vector<common_chat_msg> told;
    bool                         follows_result = false;
    for (common_chat_msg message : messages) {
        for (const auto & call : std::exchange(message.tool_calls, {})) {
            add_text(message, text_of(call));
        }
        const bool is_result = message.role == "tool";
        if (is_result) {
            const std::string name = message.tool_name.empty() ? "" : " of " + message.tool_name;
            message.content        = "Result" + name + ":\n" + message.render_content();
            message.content_parts.clear();
            message.role = "user";
            message.tool_name.clear();
            message.tool_call_id.clear();
        }
        if (follows_result && message.role == "user" && message.content_parts.empty()) {
            add_text(told.back(), message.content);
        } else {
            told.push_back(std::move(message));
        }
        follows_result = is_result || (follows_result && told.back().role == "user");
    }
    return told;
}

} // namespace

common_chat_params with_told_tools(common_chat_templates_inputs inputs, const ApplyTemplate & apply) {
    const common_json tools       = common_chat_tools_to_json_oaicompat(inputs.tools);
    const bool        is_required = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    inputs.tools.clear();
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    inputs.messages    = as_text(inputs.messages);
    const bool has_system =
        !inputs.messages.empty() && (inputs.messages[0].role == "system" || inputs.messages[0].role == "developer");
    if (!has_system) {
        inputs.messages.insert(inputs.messages.begin(), common_chat_msg());
        inputs.messages[0].role = "system";
    }
    add_text(inputs.messages[0], description(tools, is_required));

    common_chat_params chat   = apply(inputs);
    const auto         parser = build_chat_peg_parser([&](common_chat_peg_builder & p) {
        auto reasoning = p.eps();
        if (chat.supports_thinking && inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE &&
            !chat.thinking_end_tags.empty()) {
            const std::string & end = chat.thinking_end_tags[0];
            reasoning = p.optional(p.optspace(chat.thinking_start_tag) + p.reasoning(p.until(end)) + p.optspace(end));
        }
        const auto one   = p.standard_json_tools(begin_call, end_call, tools, false, true, "name", "arguments");
        const auto calls = inputs.parallel_tool_calls ? p.one_or_more(one + p.space()) : one + p.space();
        const auto text  = p.content(p.until(begin_call));
        const auto body  = is_required ? p.space() + calls : text + p.optional(calls);
        return p.prefix(chat.generation_prompt, chat.thinking_start_tag) + p.space() + reasoning + body + p.end();
    });
    chat.format               = COMMON_CHAT_FORMAT_PEG_NATIVE;
    chat.parser               = parser.save();
    chat.grammar_lazy         = !is_required;
    chat.grammar              = build_grammar(
        [&](const common_grammar_builder & builder) { parser.build_grammar(builder, chat.grammar_lazy); });
    chat.grammar_triggers.clear();
    if (chat.grammar_lazy) {
        chat.grammar_triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_WORD, begin_call});
    }
    return chat;
}

} // namespace spac
