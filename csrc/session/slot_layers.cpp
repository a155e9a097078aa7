#include "session/slot_layers.h"

#include "backend/wrapper/device.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

namespace spac {
namespace {

constexpr const char * weights = "(weight|bias)$";

// Returns the beginning of a pattern of the names of these layers' experts.
std::string experts_of(const std::vector<int> & layers) {
    std::string numbers;
    for (const int layer : layers) {
        numbers += (numbers.empty() ? "" : "|") + std::to_string(layer);
    }
    return "^blk\\.(" + numbers + ")\\.ffn_(up|down|gate|gate_up)_(ch)?exps\\.";
}

} // namespace

SlotLayers::SlotLayers() : entries_{{nullptr, nullptr}} {}

SlotLayers::~SlotLayers() = default;

void SlotLayers::add(const std::string & device, const std::vector<int> & layers) {
    auto * const memory = ggml_backend_dev_buffer_type(static_cast<ggml_backend_dev_t>(device_handle(device)));
    if (!layers.empty()) {
        put(experts_of(layers) + weights, expert_memory(device));
        put(experts_of(layers), memory); // tables of one number per expert
    }
}

void SlotLayers::add_remote(std::uintptr_t store, const std::vector<int> & layers) {
    if (!layers.empty()) { // tables stay with the layers
        put(experts_of(layers) + weights, ggml_backend_dev_buffer_type(reinterpret_cast<ggml_backend_dev_t>(store)));
    }
}

void SlotLayers::keep_output() { put("^(output|token_embd)", ggml_backend_cpu_buffer_type()); }

void SlotLayers::put(const std::string & pattern, ggml_backend_buffer_type_t memory) {
    patterns_.push_back(pattern);
    entries_.insert(entries_.end() - 1, {patterns_.back().c_str(), memory});
}

std::uintptr_t SlotLayers::address() const { return reinterpret_cast<std::uintptr_t>(entries_.data()); }

} // namespace spac
