// Turns messages into a prompt, and a model's answer back into a message. llama.cpp's chat templates and formats (its
// common/chat) know how each family of models writes its reasoning and its tool calls.
#pragma once

#include "core/not_copied.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct common_params_sampling;

namespace spac {

// The prompt of one request's messages, and what is needed to read its answer. It is immutable: any thread may read an
// answer with it, also when the model is gone.
class ChatPrompt : NotCopied {
  public:
    struct Parts;

    explicit ChatPrompt(std::unique_ptr<const Parts> parts);
    ~ChatPrompt();

    // Returns the prompt, without the beginning token where tokenizing adds it.
    const std::string & text() const;
    // Returns the texts that end an answer, beside the model's end tokens.
    const std::vector<std::string> & stops() const;
    // Returns the control tokens that belong to the text which read() gets, in ascending order. All others are left out
    // of that text.
    const std::vector<int32_t> & preserved_tokens() const;
    // Returns true if the model may reason before it answers.
    bool thinks() const;
    // Returns true if the answer may call tools.
    bool calls() const;
    // Returns true if the answer continues the last message. read() then returns both as one message.
    bool goes_on() const;

    // Returns the message that an answer makes, as JSON in OpenAI's form: content, reasoning_content, tool_calls. With
    // `is_partial`, the answer is not complete yet. Throws InputError for an answer that does not follow the model's
    // own format.
    std::string read(const std::string & answer, bool is_partial) const;

    // Makes the sampler follow the format where it is required: with a grammar for tool calls or a JSON schema, from
    // the start or from the beginning of a tool call on. `reasoning_budget` is the largest number of reasoning tokens,
    // -1 for no limit.
    void constrain(common_params_sampling & params, int reasoning_budget) const;

  private:
    std::unique_ptr<const Parts> parts_;
};

// The chat templates of a model. The caller keeps the model alive while apply() is called.
class ChatTemplates : NotCopied {
  public:
    // `model` is a llama_model. `source` is a Jinja template that replaces the file's, or "". Throws InputError for a
    // template that cannot be read, and if there is none.
    ChatTemplates(const void * model, const std::string & source);
    ~ChatTemplates();

    // Returns the prompt of a request. `request` is a JSON object with `messages`, and maybe with `tools` and
    // `tool_choice` ("auto", "none", "required"), all as in OpenAI's requests. It may also have `parallel_tool_calls`,
    // `json_schema` (the answer has to follow it), `enable_thinking`, `chat_template_kwargs` (variables of the
    // template), and `continue_final_message` (the answer continues the last message). Throws InputError with the
    // reason if the request is invalid or the template rejects it.
    std::shared_ptr<ChatPrompt> apply(const std::string & request) const;

    // Returns the features that the template supports or lacks, by llama.cpp's names ("supports_system_role",
    // "supports_tools", …).
    std::map<std::string, bool> capabilities() const;
    // Returns true if `enable_thinking` changes the prompt.
    bool can_stop_thinking() const;

    struct Loaded;

  private:
    std::unique_ptr<const Loaded> loaded_;
};

} // namespace spac
