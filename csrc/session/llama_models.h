// llama.cpp's models, contexts, adapters and log, for the bindings. An address is that of llama.cpp's object. 0 means
// that the library refused; its log tells the reason.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace spac {

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
int                  begin_token(Address model); // -1 if there is none
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

// Evaluates tokens of sequence 0, with logits for all or for none. Returns llama_decode's status.
int decode(Address context, const std::vector<int32_t> & tokens, int position, bool logits);
// Returns the logits of the last batch, and the number of columns. Throws InputError if there are none.
std::pair<const float *, int> logits(Address context);
void                          synchronize(Address context);
void                          clear_memory(Address context);

} // namespace spac
