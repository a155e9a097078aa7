// From messages to a prompt, and from what a model answers back to a message: llama.cpp's chat templates and formats
// (its common/chat), which know how each family of models writes its reasoning and its tool calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct common_params_sampling;

namespace spac {

// What the messages of one request become. Immutable: any thread may read an answer with it, also when the model is
// gone.
class ChatPrompt {
  public:
    struct Parts;

    explicit ChatPrompt(std::unique_ptr<const Parts> parts);
    ~ChatPrompt();
    ChatPrompt(const ChatPrompt &)             = delete;
    ChatPrompt & operator=(const ChatPrompt &) = delete;

    // Without the beginning token, where tokenizing adds it.
    const std::string & text() const;
    // Texts that end an answer, beside the model's end tokens.
    const std::vector<std::string> & stops() const;
    // Control tokens that belong to the text which read() gets, in ascending order; all others are left out of it.
    const std::vector<int32_t> & preserved_tokens() const;
    // Whether the model may reason before it answers.
    bool thinks() const;
    // Whether the answer goes on with the last message. read() then tells both as one.
    bool goes_on() const;

    // The message that an answer makes, as JSON in OpenAI's form: content, reasoning_content, tool_calls. `is_partial`:
    // the answer goes on. Throws InputError for an answer that is not of the model's own format.
    std::string read(const std::string & answer, bool is_partial) const;

    // Has the sampler follow the format where it has to: a grammar for tool calls or a JSON schema, from the start or
    // from a tool call's beginning on. `reasoning_budget`: tokens of reasoning at most, -1 for no limit.
    void constrain(common_params_sampling & params, int reasoning_budget) const;

  private:
    std::unique_ptr<const Parts> parts_;
};

// The chat templates of a model. The caller keeps the model alive while apply() is called.
class ChatTemplates {
  public:
    // `model`: a llama_model. `source`: a Jinja template in place of the file's, or "". Throws InputError for a
    // template that cannot be read, and where there is none.
    ChatTemplates(const void * model, const std::string & source);
    ~ChatTemplates();
    ChatTemplates(const ChatTemplates &)             = delete;
    ChatTemplates & operator=(const ChatTemplates &) = delete;

    // `request`: a JSON object with `messages` and maybe `tools` and `tool_choice` ("auto", "none", "required"), both
    // as in OpenAI's requests, `parallel_tool_calls`, `json_schema` (what the answer has to follow), `enable_thinking`,
    // `chat_template_kwargs` (variables of the template), `continue_final_message` (the answer goes on with the last
    // message). Throws InputError with the reason when the request or the template
    // refuses.
    std::shared_ptr<ChatPrompt> apply(const std::string & request) const;

    // What the template has a place for ("supports_system_role", "supports_tools", …), by llama.cpp's names.
    std::map<std::string, bool> capabilities() const;
    // Whether `enable_thinking` makes a difference.
    bool can_stop_thinking() const;

    struct Loaded;

  private:
    std::unique_ptr<const Loaded> loaded_;
};

} // namespace spac
