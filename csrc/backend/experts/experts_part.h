// A device's part of a model's experts: the slots of the layers that the device computes, and what moves experts there.
//
// Every part knows all layers of the model, in their order. It has slots for those of its device alone: the pools of
// other devices' layers are empty in it. So one plan serves all parts, and each drives its own slots toward it, over
// its own link.
#pragma once

#include "backend/experts/slot_storage.h"
#include "core/residency.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace spac {

class Reconciler;

struct ExpertsPart {
    explicit ExpertsPart(ggml_backend_dev_t on);
    ~ExpertsPart();

    const ggml_backend_dev_t device;

    // Held for a round of the reconciler, and while an execution's misses change the slots. It is locked before the
    // mutex of ModelExperts, which guards what follows.
    std::mutex                         driving;
    std::shared_ptr<const SlotStorage> storage;
    std::unique_ptr<Residency>         residency; // null without slots
    std::unique_ptr<Reconciler>        reconciler;

    std::atomic<size_t>   stream_held{0}; // bytes of contexts' weight streams
    std::atomic<uint64_t> uploads{0}, upload_bytes{0}, upload_failures{0}, upload_ns{0}, evictions{0};
};

} // namespace spac
