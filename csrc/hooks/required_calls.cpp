// Answers that have to call a tool (tool_choice "required") begin with the call, behind their reasoning.
//
// llama.cpp's grammars for such answers let any text come before the call, so a model that writes prose goes on until
// its limit. Where one call is asked for, the answer ends with it. The linker's --wrap leads the calls here
// (csrc/CMakeLists.txt).
#include "chat.h"
#include "hooks/told_tools.h"
#include "session/template_work.h"

#include <algorithm>
#include <exception>
#include <regex>
#include <string>

namespace {

// Takes the text that may come before the call out of a grammar's root: a rule for all text until a mark. The reasoning
// has such a rule too, before the end of its tags.
std::string with_call_first(const std::string & grammar) {
    static const std::regex free_text(" until-[0-9]+([?](?= )|(?=( space)? tool-call))");
    const std::string       root  = "root ::=";
    const size_t            begin = grammar.compare(0, root.size(), root) == 0 ? 0 : grammar.find("\n" + root);
    if (begin == std::string::npos) {
        return grammar;
    }
    const size_t end = std::min(grammar.find('\n', begin + 1), grammar.size());
    return grammar.substr(0, begin) + std::regex_replace(grammar.substr(begin, end - begin), free_text, "") +
           grammar.substr(end);
}

// Lets a grammar end with its first call, where llama.cpp repeats calls whether or not several are allowed.
std::string with_one_call(std::string grammar) {
    const std::string several = "\ntool-calls ::= (tool-call space)+", one = "\ntool-calls ::= tool-call space";
    const size_t      at = grammar.find(several);
    return at == std::string::npos ? grammar : grammar.replace(at, several.size(), one);
}

} // namespace

#define SPAC_APPLY(prefix)                                                                                             \
    prefix##_Z27common_chat_templates_applyPK21common_chat_templatesRK28common_chat_templates_inputs

extern "C" {
common_chat_params SPAC_APPLY(__real_)(const common_chat_templates *        templates,
                                       const common_chat_templates_inputs & inputs);
common_chat_params SPAC_APPLY(__wrap_)(const common_chat_templates *        templates,
                                       const common_chat_templates_inputs & inputs);
}

namespace {

common_chat_params applied(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    const auto apply = [&](const common_chat_templates_inputs & of) { return SPAC_APPLY(__real_)(templates, of); };
    if (inputs.tools.empty() || inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_NONE || inputs.force_pure_content) {
        return apply(inputs);
    }
    const bool         wants_call = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const bool         has_calls  = common_chat_templates_get_caps(templates)["supports_tool_calls"];
    common_chat_params chat;
    try {
        chat = apply(inputs);
    } catch (const std::exception &) {
        if (has_calls) {
            throw;
        }
        return spac::with_told_tools(inputs, apply); // the template may refuse results of tools
    }
    if (chat.grammar.empty() && (wants_call || !has_calls)) {
        return spac::with_told_tools(inputs, apply);
    }
    if (!wants_call) {
        return chat;
    }
    if (!chat.grammar_lazy) {
        chat.grammar = with_call_first(chat.grammar);
        chat.grammar = inputs.parallel_tool_calls ? chat.grammar : with_one_call(chat.grammar);
    }
    return chat;
}

} // namespace

common_chat_params SPAC_APPLY(__wrap_)(const common_chat_templates *        templates,
                                       const common_chat_templates_inputs & inputs) {
    common_chat_params chat;
    spac::within_template_limits([&] { chat = applied(templates, inputs); });
    return chat;
}
