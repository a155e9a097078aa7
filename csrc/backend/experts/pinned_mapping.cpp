#include "backend/experts/expert_store.h"

#include "backend/device/settings.h"

#include <algorithm>
#include <mutex>

#include <unistd.h>

namespace spac {
namespace {

// Pinned bytes that are held while a mapping is registered, and freed afterwards. The prefetcher and contexts pin
// memory later, which the driver must not refuse because the experts took all of it.
constexpr size_t headroom = size_t{256} << 20;

// Both functions of ggml's backends clear the error state that a refusal leaves.
constexpr const char * register_name   = "ggml_backend_register_host_buffer";
constexpr const char * unregister_name = "ggml_backend_unregister_host_buffer";

using Register   = bool (*)(void *, size_t);
using Unregister = void (*)(void *);

// Guards the count of pinned bytes, so that each model sees the limit less the other models' bytes.
std::mutex pin_mutex;
size_t     pinned_now = 0;

void * driver_function(ggml_backend_dev_t dev, const char * name) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    return reg != nullptr ? ggml_backend_reg_get_proc_address(reg, name) : nullptr;
}

size_t room_locked() {
    const size_t limit = pinning().limit;
    return limit > pinned_now ? limit - pinned_now : 0;
}

size_t total(const std::vector<Extent> & slices) {
    size_t sum = 0;
    for (const Extent & slice : slices) {
        sum += slice.end - slice.begin;
    }
    return sum;
}

} // namespace

bool can_register(ggml_backend_dev_t device) { return driver_function(device, register_name) != nullptr; }

size_t pinning_room() {
    const std::lock_guard lock(pin_mutex);
    return room_locked();
}

void count_pinned(size_t bytes) {
    const std::lock_guard lock(pin_mutex);
    pinned_now += bytes;
}

void uncount_pinned(size_t bytes) {
    const std::lock_guard lock(pin_mutex);
    pinned_now -= bytes;
}

PinnedMapping::~PinnedMapping() {
    if (slices_.empty()) {
        return;
    }
    auto *                call = reinterpret_cast<Unregister>(driver_function(device_, unregister_name));
    const std::lock_guard lock(pin_mutex);
    for (const Extent & slice : slices_) {
        auto * begin = reinterpret_cast<void *>(slice.begin);
        ranges_.remove(begin);
        if (call != nullptr) {
            call(begin);
        }
    }
    pinned_now -= total(slices_);
}

Unpinned PinnedMapping::make(ggml_backend_dev_t device, Extent mapping, std::vector<Extent> weights) {
    auto * call = reinterpret_cast<Register>(driver_function(device, register_name));
    if (call == nullptr) {
        return Unpinned::none; // this device cannot pin memory
    }
    const Pinning how = pinning();
    if (!how.on) {
        return Unpinned::off;
    }
    device_ = device;
    std::sort(weights.begin(), weights.end(), [](const Extent & a, const Extent & b) { return a.begin < b.begin; });
    const auto                    page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const std::lock_guard         lock(pin_mutex);
    const size_t                  room   = room_locked();
    const auto                    slices = pin_slices(mapping, weights, page, how.slice, room);
    ggml_backend_buffer_type_t    type   = ggml_backend_dev_host_buffer_type(device);
    const ggml_backend_buffer_ptr kept(type != nullptr ? ggml_backend_buft_alloc_buffer(type, headroom) : nullptr);
    Unpinned why = total(slices) < total(pin_slices(mapping, weights, page, how.slice, SIZE_MAX)) ? Unpinned::limit
                                                                                                  : Unpinned::none;
    for (const Extent & slice : slices) {
        auto *       begin = reinterpret_cast<void *>(slice.begin);
        const size_t bytes = slice.end - slice.begin;
        if (!call(begin, bytes)) {
            why = Unpinned::refused;
            break;
        }
        slices_.push_back(slice);
        ranges_.add(begin, bytes);
        pinned_now += bytes;
    }
    return why;
}

} // namespace spac
