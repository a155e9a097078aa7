// Layers whose experts lie elsewhere than their dense weights: in another device's store, or on an RPC server.
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
    // Puts the experts of these layers into the store of a remote device (RemoteDevice::store).
    void add_remote(std::uintptr_t store, const std::vector<int> & layers);
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
