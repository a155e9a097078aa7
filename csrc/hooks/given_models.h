// Models and contexts that are loaded already, for code of llama.cpp that would load them itself.
#pragma once

#include "core/not_copied.h"
#include "llama.h"

namespace spac {

// A model with its context; both may be null. Without a model, the context is of the target's.
struct GivenModel {
    llama_model *   model   = nullptr;
    llama_context * context = nullptr;
};

// While it lives, llama.cpp's loads on this thread return the given models and contexts, in this order, and its
// deletes on this thread leave them alone. Their owner frees them later.
class GivenModels : NotCopied {
  public:
    GivenModels(const GivenModel & target, const GivenModel & draft);
    ~GivenModels();

    // Returns the next model to give, or null.
    llama_model * next_model();
    // Returns the next context to give, if it is of this model, or null.
    llama_context * next_context(const llama_model * model);
    bool            has(const llama_model * model) const;
    bool            has(const llama_context * context) const;

  private:
    GivenModel given_[2];
    int        n_loaded_ = 0, n_contexts_ = 0; // how many were given
};

} // namespace spac
