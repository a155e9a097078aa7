// Layers whose experts have slots on another device than their dense weights.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

struct ggml_backend_buffer_type;
struct llama_model_tensor_buft_override;

namespace spac {

// The entries of llama_model_params.tensor_buft_overrides that put experts of some layers into the stores of other
// devices. ggml's scheduler computes what reads them there. It has to live until the model is loaded.
class SlotLayers {
  public:
    SlotLayers();
    ~SlotLayers();
    SlotLayers(const SlotLayers &)             = delete;
    SlotLayers & operator=(const SlotLayers &) = delete;

    // Gives the experts of these layers to a device. Throws InputError for an unknown device.
    void add(const std::string & device, const std::vector<int> & layers);
    // Returns the address of the entries, which add() changes.
    std::uintptr_t address() const;

  private:
    void put(const std::string & ending, const std::string & experts, ggml_backend_buffer_type * memory);

    std::list<std::string>                        patterns_; // whose addresses the entries have
    std::vector<llama_model_tensor_buft_override> entries_;  // with an empty one at the end
};

} // namespace spac
