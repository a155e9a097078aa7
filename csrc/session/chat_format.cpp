#include "session/chat_format.h"

#include "chat.h"
#include "core/error.h"
#include "llama.h"
#include "session/big_stack.h"
#include "session/session.h"
#include "session/template_work.h"

#include <algorithm>

namespace spac {

struct ChatPrompt::Parts {
    common_chat_params        chat;
    common_chat_parser_params reader;
    std::vector<int32_t>      preserved;
    // Triggers and tags for the sampler, as tokens of the model.
    std::vector<common_grammar_trigger> triggers;
    llama_tokens                        thinking_start;
    std::vector<llama_tokens>           thinking_ends;
    common_grammar_type                 grammar_type = COMMON_GRAMMAR_TYPE_NONE;
    bool                                goes_on      = false;
};

struct ChatTemplates::Loaded {
    const llama_vocab *       vocab;
    common_chat_templates_ptr templates;
};

namespace {

[[noreturn]] void refuse(const std::exception & error) { throw InputError(error.what()); }

common_chat_templates_inputs read_request(const common_json & request, const llama_vocab * vocab) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (request.contains("tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
    }
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    if (request.contains("json_schema")) {
        inputs.json_schema = request.at("json_schema").dump();
    }
    if (request.contains("chat_template_kwargs")) {
        if (!request.at("chat_template_kwargs").is_object()) {
            throw InputError("chat_template_kwargs is no object");
        }
        for (const auto & [name, value] : request.at("chat_template_kwargs").items()) {
            inputs.chat_template_kwargs[name] = value.dump();
        }
    }
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
    inputs.enable_thinking     = request.value("enable_thinking", true);
    if (request.value("continue_final_message", false)) {
        inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
    }
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    inputs.add_bos          = llama_vocab_get_add_bos(vocab);
    inputs.add_eos          = llama_vocab_get_add_eos(vocab);
    return inputs;
}

std::string own_source(const llama_model * model) {
    const char * source = llama_model_chat_template(model, nullptr);
    return source != nullptr ? source : llama_model_chat_template(model, "tool_use");
}

// Returns the tokens of those words that are one token of the vocabulary, sorted. The other words are ordinary text
// already.
std::vector<int32_t> tokens_of(const std::vector<std::string> & words, const llama_vocab * vocab) {
    std::vector<int32_t> tokens;
    for (const auto & word : words) {
        const auto found = common_tokenize(vocab, word, false, true);
        if (found.size() == 1) {
            tokens.push_back(found.front());
        }
    }
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

// Replaces each trigger word that is one of the preserved tokens by that token. Text that merely spells the word is
// then no trigger.
std::vector<common_grammar_trigger> tokenized(const std::vector<common_grammar_trigger> & triggers,
                                              const std::vector<int32_t> & preserved, const llama_vocab * vocab) {
    std::vector<common_grammar_trigger> result;
    for (auto trigger : triggers) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            const auto found = common_tokenize(vocab, trigger.value, false, true);
            if (found.size() == 1 && std::binary_search(preserved.begin(), preserved.end(), found.front())) {
                trigger.type  = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
                trigger.token = found.front();
            }
        }
        result.push_back(std::move(trigger));
    }
    return result;
}

std::unique_ptr<ChatPrompt::Parts> prepared(common_chat_params chat, bool has_schema, const llama_vocab * vocab) {
    auto parts                     = std::make_unique<ChatPrompt::Parts>();
    parts->reader                  = common_chat_parser_params(chat);
    parts->reader.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    if (!chat.parser.empty()) {
        parts->reader.parser.load(chat.parser);
    }
    parts->preserved = tokens_of(chat.preserved_tokens, vocab);
    parts->triggers  = tokenized(chat.grammar_triggers, parts->preserved, vocab);
    if (!chat.thinking_start_tag.empty()) {
        parts->thinking_start = common_tokenize(vocab, chat.thinking_start_tag, false, true);
        for (const auto & tag : chat.thinking_end_tags) {
            parts->thinking_ends.push_back(common_tokenize(vocab, tag, false, true));
        }
    }
    if (!chat.grammar.empty()) {
        parts->grammar_type = has_schema ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT : COMMON_GRAMMAR_TYPE_TOOL_CALLS;
    }
    parts->chat = std::move(chat);
    return parts;
}

using PartsPtr = std::unique_ptr<ChatPrompt::Parts>;

PartsPtr applied(const ChatTemplates::Loaded & loaded, const common_chat_templates_inputs & inputs) {
    return prepared(common_chat_templates_apply(loaded.templates.get(), inputs), !inputs.json_schema.empty(),
                    loaded.vocab);
}

std::string trimmed(const std::string & text) {
    const char * const blank = " \t\r\n";
    const auto         begin = text.find_first_not_of(blank);
    return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blank) + 1 - begin);
}

bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Returns the message that is read before the answer has any text of its own.
common_chat_msg begun(const ChatPrompt::Parts & parts) {
    try {
        return common_chat_parse("", true, parts.reader);
    } catch (const std::exception &) {
        return {};
    }
}

bool has_said(const ChatPrompt::Parts & parts, const std::string & content) {
    return ends_with(trimmed(begun(parts).content), trimmed(content));
}

// Returns the template's own beginning of an answer with `text` behind it. Returns null where a reasoning is open
// there, or where common has only added the end of a reasoning that the template knows of.
PartsPtr as_template(const ChatTemplates::Loaded & loaded, const common_chat_templates_inputs & inputs,
                     const ChatPrompt::Parts & by_common, const std::string & text) {
    auto before = inputs;
    before.messages.pop_back();
    before.continue_final_message = COMMON_CHAT_CONTINUATION_NONE;
    auto         chat             = common_chat_templates_apply(loaded.templates.get(), before);
    const auto & common           = by_common.chat;
    const auto   end              = trimmed(chat.prompt);
    const bool   has_reasoned     = std::any_of(common.thinking_end_tags.begin(), common.thinking_end_tags.end(),
                                                [&](const std::string & tag) { return !tag.empty() && ends_with(end, tag); });
    const bool   reasons          = !common.thinking_start_tag.empty() && ends_with(end, common.thinking_start_tag);
    const bool   is_same          = common.prompt.compare(0, chat.prompt.size(), chat.prompt) == 0 &&
                         trimmed(begun(by_common).content) == trimmed(text);
    const auto source = common_chat_templates_source(loaded.templates.get());
    const bool knows_reasoning =
        common.thinking_start_tag.empty() || source.find(common.thinking_start_tag) != std::string::npos;
    if (!has_reasoned && (reasons || (is_same && knows_reasoning))) {
        return nullptr;
    }
    chat.prompt += text;
    chat.generation_prompt += text;
    return prepared(std::move(chat), !inputs.json_schema.empty(), loaded.vocab);
}

// Makes the last message the beginning of the answer. common rebuilds what comes before the message's text, and closes
// a reasoning there. Some templates have closed it already, or have none.
PartsPtr continued(const ChatTemplates::Loaded & loaded, const common_chat_templates_inputs & inputs) {
    const auto message = inputs.messages.back();
    const auto text    = message.render_content();
    auto       parts   = applied(loaded, inputs);
    if (text.empty()) {
        if (!ends_with(trimmed(begun(*parts).reasoning_content), trimmed(message.reasoning_content))) {
            throw InputError("in its format, an answer cannot go on with a reasoning");
        }
    } else {
        auto other = as_template(loaded, inputs, *parts, text);
        if (other != nullptr && has_said(*other, text)) {
            parts = std::move(other);
        } else if (!has_said(*parts, text)) {
            throw InputError("in its format, an answer cannot go on with the last message");
        }
    }
    parts->goes_on = true;
    return parts;
}

} // namespace

ChatPrompt::ChatPrompt(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatPrompt::~ChatPrompt() = default;

const std::string &              ChatPrompt::text() const { return parts_->chat.prompt; }
const std::vector<std::string> & ChatPrompt::stops() const { return parts_->chat.additional_stops; }
const std::vector<int32_t> &     ChatPrompt::preserved_tokens() const { return parts_->preserved; }
bool                             ChatPrompt::thinks() const { return parts_->chat.supports_thinking; }
bool ChatPrompt::calls() const { return parts_->grammar_type == COMMON_GRAMMAR_TYPE_TOOL_CALLS; }
bool ChatPrompt::goes_on() const { return parts_->goes_on; }

std::string ChatPrompt::read(const std::string & answer, bool is_partial) const {
    try {
        return common_chat_parse(answer, is_partial, parts_->reader).to_json_oaicompat().dump_safe();
    } catch (const std::exception & error) {
        refuse(error);
    }
}

void ChatPrompt::constrain(common_params_sampling & params, int reasoning_budget) const {
    const auto & parts = *parts_;
    // The user's own grammar takes precedence.
    if (params.grammar.empty() && parts.grammar_type != COMMON_GRAMMAR_TYPE_NONE) {
        params.grammar          = common_grammar(parts.grammar_type, parts.chat.grammar);
        params.grammar_lazy     = parts.chat.grammar_lazy;
        params.grammar_triggers = parts.triggers;
    }
    params.preserved_tokens  = {parts.preserved.begin(), parts.preserved.end()};
    params.generation_prompt = parts.chat.generation_prompt;
    if (parts.thinking_start.empty() || parts.thinking_ends.empty()) {
        return;
    }
    if (params.grammar.empty() || params.grammar_lazy) {
        // Then only the reasoning budget reads this text. It would count a line break behind the tag that ends the
        // prompt.
        auto & text = params.generation_prompt;
        text.erase(text.find_last_not_of(" \t\r\n") + 1);
    }
    params.reasoning_budget_tokens = reasoning_budget;
    params.reasoning_budget_start  = parts.thinking_start;
    params.reasoning_budget_end    = parts.thinking_ends;
    params.reasoning_budget_forced = parts.thinking_ends.front();
}

ChatTemplates::ChatTemplates(const void * model, const std::string & source) {
    const auto * loaded_model = static_cast<const llama_model *>(model);
    if (loaded_model == nullptr) {
        throw InputError("chat templates need a model, got a null pointer");
    }
    if (source.empty() && llama_model_chat_template(loaded_model, nullptr) == nullptr &&
        llama_model_chat_template(loaded_model, "tool_use") == nullptr) {
        throw InputError("the file has no chat template");
    }
    try {
        auto loaded       = std::make_unique<Loaded>();
        loaded->vocab     = llama_model_get_vocab(loaded_model);
        loaded->templates = common_chat_templates_init(loaded_model, source);
        loaded_           = std::move(loaded);
    } catch (const InputError &) {
        throw;
    } catch (const std::exception & error) {
        // Parses the template again, because common's exception has lost the parser's message.
        try {
            const auto text = source.empty() ? own_source(loaded_model) : source;
            within_template_limits([&] { common_chat_template(text, "", ""); });
        } catch (const std::exception & fault) {
            refuse(fault);
        }
        refuse(error);
    }
}

ChatTemplates::~ChatTemplates() = default;

std::shared_ptr<ChatPrompt> ChatTemplates::apply(const std::string & request) const {
    try {
        const auto json    = common_json::parse(request);
        const auto inputs  = read_request(json, loaded_->vocab);
        const bool goes_on = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE && !inputs.messages.empty();
        PartsPtr   parts;
        const auto apply = [&] { parts = goes_on ? continued(*loaded_, inputs) : applied(*loaded_, inputs); };
        if (inputs.tools.empty() && inputs.json_schema.empty()) {
            apply();
        } else if (!on_stack(schema_stack, apply)) {
            throw InputError("there is no memory for a stack");
        }
        return std::make_shared<ChatPrompt>(std::move(parts));
    } catch (const std::exception & error) {
        refuse(error);
    }
}

std::map<std::string, bool> ChatTemplates::capabilities() const {
    return common_chat_templates_get_caps(loaded_->templates.get());
}

bool ChatTemplates::can_stop_thinking() const {
    common_chat_templates_inputs inputs;
    inputs.messages.emplace_back();
    inputs.messages.back().role    = "user";
    inputs.messages.back().content = "hello";
    inputs.reasoning_format        = COMMON_REASONING_FORMAT_DEEPSEEK;
    try {
        const auto thinking    = common_chat_templates_apply(loaded_->templates.get(), inputs).prompt;
        inputs.enable_thinking = false;
        return common_chat_templates_apply(loaded_->templates.get(), inputs).prompt != thinking;
    } catch (const std::exception &) { // a template may reject any request
        return false;
    }
}

} // namespace spac
