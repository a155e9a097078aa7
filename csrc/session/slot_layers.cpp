#include "session/slot_layers.h"

#include "backend/wrapper/device.h"
#include "ggml-backend.h"
#include "llama.h"

namespace spac {

SlotLayers::SlotLayers() : entries_{{nullptr, nullptr}} {}

SlotLayers::~SlotLayers() = default;

void SlotLayers::add(const std::string & device, const std::vector<int> & layers) {
    auto * const memory = ggml_backend_dev_buffer_type(static_cast<ggml_backend_dev_t>(device_handle(device)));
    std::string  numbers;
    for (const int layer : layers) {
        numbers += (numbers.empty() ? "" : "|") + std::to_string(layer);
    }
    const std::string experts = "^blk\\.(" + numbers + ")\\.ffn_(up|down|gate|gate_up)_(ch)?exps\\.";
    if (!layers.empty()) {
        put("(weight|bias)$", experts, expert_memory(device));
        put("", experts, memory); // tables of one number per expert
    }
}

void SlotLayers::put(const std::string & ending, const std::string & experts, ggml_backend_buffer_type_t memory) {
    patterns_.push_back(experts + ending);
    entries_.insert(entries_.end() - 1, {patterns_.back().c_str(), memory});
}

std::uintptr_t SlotLayers::address() const { return reinterpret_cast<std::uintptr_t>(entries_.data()); }

} // namespace spac
