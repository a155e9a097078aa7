// llama.cpp's server_context on models that spac has loaded: its slots, its speculative loop, and its handlers of
// requests, without HTTP.
//
// Like session.h, this header names no llama.cpp type.
#pragma once

#include "core/loop_lock.h"
#include "core/not_copied.h"
#include "hooks/loop_listeners.h"
#include "hooks/loop_text.h"
#include "session/session.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace spac {

// A LoRA adapter of the target that is loaded.
struct LoopAdapter {
    std::string path;
    void *      adapter = nullptr; // llama_adapter_lora *
    float       scale   = 1.0f;
};

struct LoopConfig {
    SessionConfig session; // its contexts, experts, trace, draft, prompt cache and checkpoints; sampling: the defaults
    int           n_slots = 1;                                        // at most as many as the contexts have sequences
    std::string   path;                                               // the target's file
    std::string   name;                                               // the model's name in answers
    std::vector<std::string>           aliases;                       // further names
    std::string                        reasoning_format = "deepseek"; // as common_reasoning_format_from_name() has it
    std::string                        reasoning_message;             // ends the reasoning where its budget is spent
    bool                               parses      = true;            // false: reasoning and calls stay in the content
    bool                               shows_slots = true;            // false: the list of slots is refused
    std::string                        template_text;           // replaces the file's chat template; empty: the file's
    std::string                        slot_folder;             // where slots are saved; empty: nowhere
    std::string                        projector;               // the file of the session's projector; empty: none
    bool                               reasons          = true; // false: templates are told not to let the model reason
    int                                reasoning_budget = -1;   // largest number of reasoning tokens; -1: any
    bool                               prefills         = true; // an assistant's message at the end begins the answer
    std::map<std::string, std::string> template_variables;      // JSON values by name
    bool is_verbose = false; // answers tell what became of their request, and the loop writes its log
    bool embeds     = false; // it makes embeddings too, with the pooling of the target's context
    std::vector<LoopAdapter>  adapters;
    std::shared_ptr<LoopLock> lock = std::make_shared<LoopLock>(); // held while the loop computes
    // Called on the loop's thread with all that it does. What listeners need there may be made once.
    std::function<void(const std::function<void()> &)> around = [](const auto & run) { run(); };
};

struct LoopRequest {
    std::string                        route; // as in ServerLoop::routes()
    std::string                        body;
    std::map<std::string, std::string> params; // of the path and the query
    std::map<std::string, std::string> headers;
};

// A prompt of this process, and what is asked for.
struct TextRequest {
    std::vector<int32_t>     tokens;     // of the prompt, if it has no images
    std::string              text;       // of a prompt with images
    std::vector<std::string> images;     // the files in memory that the text's markers stand for
    int                      limit = -1; // the most tokens; -1: any
    JoinConfig               join;
};

// An answer, or the beginning of a stream. One thread at a time makes it; cancel() and close() may be called by others.
class LoopResponse {
  public:
    virtual ~LoopResponse() = default;

    // Answers the request. Returns with the whole answer, or when a stream begins. Called once, before what follows.
    virtual void run() = 0;

    virtual int         status() const       = 0;
    virtual std::string content_type() const = 0;
    virtual std::string body() const         = 0; // the whole one; empty for a stream

    // Further headers of the answer.
    virtual std::map<std::string, std::string> headers() const = 0;

    virtual bool is_stream() const = 0;
    // Sets the next part of a stream, which may be empty. Returns false if it is the last one.
    virtual bool next(std::string & part) = 0;
    // Lets the work for this answer end soon: run() returns, and next() returns false.
    virtual void cancel() noexcept = 0;
    // Cancels, waits for a call that runs, and frees what the answer holds of the server.
    virtual void close() noexcept = 0;
};

// A text for this process.
class LoopText {
  public:
    virtual ~LoopText() = default;

    // Returns its number, which the listener of a text's beginning gets.
    virtual uint64_t number() const = 0;
    // Asks the loop for the text. Called once. Throws InputError for a prompt that is refused.
    virtual void begin() = 0;
    // Waits for news, and returns them. One thread at a time calls it. Throws the error that has ended the text.
    virtual TextNews next() = 0;
    // Ends the text. begin() and next() return soon. Any thread may call it.
    virtual void cancel() noexcept = 0;
};

class ServerLoop : NotCopied {
  public:
    // Starts the loop on a thread of its own. Throws InputError if llama.cpp refuses the models or options.
    explicit ServerLoop(const LoopConfig & config);
    // Closes all answers first.
    ~ServerLoop();

    static std::vector<std::string> routes();
    // Returns the text that stands for an image in prompts. It is different in every process.
    static std::string media_marker();

    // Returns the answer of a request, which run() makes. The route "forget" waits until no slot works, and forgets
    // what the slots hold; the caller may use the contexts from then on, until the next request. Any thread may call
    // it.
    std::unique_ptr<LoopResponse> begin(const LoopRequest & request);
    // Returns a text, which begins with LoopText::begin(). Any thread may call it. Throws InputError for sampling
    // parameters that are invalid.
    std::unique_ptr<LoopText> generate(TextRequest request);

    // Sets the callbacks. Must not be called while a request is answered.
    void set_listeners(const Listeners & listeners, LoopListeners more);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace spac
