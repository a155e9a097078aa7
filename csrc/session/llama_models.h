// llama.cpp's models, contexts, adapters and log, for the bindings. An address is that of llama.cpp's object. 0 means
// that the library refused; its log tells the reason.
#pragma once

#include "core/not_copied.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

struct ggml_backend_buffer_type;
struct llama_context;
struct llama_context_params;
struct llama_model_kv_override;
struct llama_model_params;
struct llama_model_tensor_buft_override;

namespace spac {

class ThreadPool;

using Address = std::uintptr_t;

// Fields of llama_model_params or llama_context_params, by name. A pointer is an integer.
using FieldValue = std::variant<bool, int64_t, double>;
using Fields     = std::map<std::string, FieldValue>;

// Entries of a model's metadata that replace those of the file.
using Override  = std::variant<bool, int64_t, double, std::string>;
using Overrides = std::vector<std::pair<std::string, Override>>;

using LogCallback = void (*)(int level, const char * text);

// llama.cpp's constants, by spac's names.
const std::map<std::string, int> & llama_constants();

void start_llama();
// Passes every line of the library's log to the callback, from any thread.
void log_to(LogCallback callback);

// Loads a file on these devices, or on the CPU. `tensor_split` has each device's part of the layers; if it is empty,
// their free memory decides. `progress` may be empty; it gets the loaded share, and returns false to stop. Throws
// InputError for an unknown field, and for a value that a field cannot have.
Address load_model(const std::string & path, const std::vector<Address> & devices, const Fields & fields,
                   const Overrides & overrides, std::vector<float> tensor_split,
                   const std::function<bool(float)> & progress);
void    free_model(Address model);

int         model_layers(Address model);
int         model_extra_layers(Address model); // those that predict further tokens
uint64_t    model_bytes(Address model);
std::string model_description(Address model);
bool        model_has_encoder(Address model);
bool        model_is_recurrent(Address model); // some layers keep a state in place of the past
bool        model_has_window(Address model);   // some layers see a window of the past and no more
std::string chat_template(Address model);      // empty if the file has none

Address              model_vocabulary(Address model);
int                  n_model_tokens(Address model); // of its vocabulary
int                  begin_token(Address model);    // -1 if there is none
bool                 adds_begin(Address model);
std::string          token_text(Address model, int token);
std::string          token_piece(Address vocabulary, int token, bool special);
bool                 is_end(Address model, int token);
std::vector<int32_t> tokenize(Address model, const std::string & text, bool special);

// Makes a context. Throws InputError as load_model() does.
Address new_context(Address model, const Fields & fields);
void    free_context(Address context);
int     context_size(Address context);
int     context_threads(Address context); // the larger one of those for a prompt and for a token
int     graph_tokens(Address context);    // the most tokens of one graph
int     batch_tokens(Address context);    // the most tokens of one batch

// Loads an adapter, which is freed with its model.
Address load_adapter(Address model, const std::string & path);
// Makes an empty context compute with adapters, and decodes a token. Returns false if this fails.
bool apply_adapters(Address context, const std::vector<Address> & adapters, std::vector<float> scales);

// Evaluates `n_tokens` tokens and some single ones, and forgets them. Returns llama_decode's status.
int rehearse(Address context, int n_tokens);

// Evaluates tokens of sequence 0, with logits for all or for none. Returns llama_decode's status.
int decode(Address context, const std::vector<int32_t> & tokens, int position, bool logits);
// Returns the logits of the last batch, and the number of columns. Throws InputError if there are none.
std::pair<const float *, int> logits(Address context);
void                          synchronize(Address context);

// Returns the address of llama_decode, as calls from inside the library reach it. Tests ask whether everybody in the
// process uses the same llama.cpp.
std::uintptr_t llama_decode_address();

// Return ggml's version, and llama.cpp's system information: the instruction sets and backends compiled in.
std::string ggml_version_text();
std::string system_info();

// Makes a context compute its graphs on the CPU with a pool, which has to live as long as the context. Contexts that
// compute in turns share one pool, because the threads of a second pool would still look for work while those of the
// first compute.
void attach_pool(Address context, const ThreadPool & pool);

// Returns why a server of the context's model is lost; empty if none is. Results that were computed since are void.
std::string remote_loss_of(const llama_context * ctx);

// Set parameters of models and contexts, by the names of their fields (llama_params.cpp). Throw InputError for an
// unknown one, with a list of those known, and for a value that it cannot have.
void set_fields(const Fields & fields, llama_model_params & params);
void set_fields(const Fields & fields, llama_context_params & params);

// Returns entries for llama_model_params.kv_overrides. The last one has an empty key.
std::vector<llama_model_kv_override> entries_of(const Overrides & overrides);

// The entries of llama_model_params.tensor_buft_overrides for layers whose experts lie elsewhere than their dense
// weights: in another device's store. ggml's scheduler computes what reads them there. It has to
// live until the model is loaded.
class SlotLayers : NotCopied {
  public:
    SlotLayers();
    ~SlotLayers();

    // Gives the experts of these layers to a device. Throws InputError for an unknown device.
    void add(const std::string & device, const std::vector<int> & layers);
    // Keeps the experts of these layers in host memory, where the CPU computes them.
    void keep_experts(const std::vector<int> & layers);
    // Keeps the output matrix in host memory.
    void keep_output();
    // Returns the address of the entries, which add() changes.
    std::uintptr_t address() const;

  private:
    void put(const std::string & pattern, ggml_backend_buffer_type * memory);

    std::list<std::string>                        patterns_; // whose addresses the entries have
    std::vector<llama_model_tensor_buft_override> entries_;  // with an empty one at the end
};

} // namespace spac
