// Models, contexts, adapters and projectors that are loaded already, for code of llama.cpp that would load them.
#pragma once

#include "core/not_copied.h"
#include "llama.h"
#include "mtmd.h"

#include <vector>

namespace spac {

// A model with its context; both may be null. Without a model, the context is of the target's.
struct GivenModel {
    llama_model *   model   = nullptr;
    llama_context * context = nullptr;
};

// While it lives, llama.cpp's loads on this thread return the given models, contexts and adapters, in this order, and
// the projector. Its deletes on this thread leave them alone. Their owner frees them later.
class GivenModels : NotCopied {
  public:
    // `projector` may be null.
    GivenModels(const GivenModel & target, const GivenModel & draft, std::vector<llama_adapter_lora *> adapters,
                mtmd_context * projector);
    ~GivenModels();

    // Returns the next model to give, or null.
    llama_model * next_model();
    // Returns the next context to give, if it is of this model, or null.
    llama_context * next_context(const llama_model * model);
    // Returns the next adapter to give, or null.
    llama_adapter_lora * next_adapter();
    mtmd_context *       projector() const { return projector_; }
    // Returns the tokens of a sequence in the target's context; 0 for other models.
    int  context_of(const llama_model * model) const;
    bool has(const llama_model * model) const;
    bool has(const llama_context * context) const;
    bool has(const llama_adapter_lora * adapter) const;

  private:
    GivenModel                        given_[2];
    std::vector<llama_adapter_lora *> adapters_;
    mtmd_context *                    projector_;
    int                               n_loaded_ = 0, n_contexts_ = 0; // how many were given
    size_t                            n_adapters_ = 0;
};

} // namespace spac
