#include "backend/device/device.h"

#include "backend/device/ggml_internals.h"
#include "backend/device/kernel_memory.h"

#include <algorithm>
#include <list>
#include <mutex>

namespace spac {
namespace {

// One buffer type of a watched device: the device's memory, or host memory that it copies from.
struct Watched {
    ggml_backend_dev_t         device;
    ggml_backend_buffer_type_t type;
    bool                       is_host;
    ggml_backend_buffer_t (*alloc)(ggml_backend_buffer_type_t type, size_t size); // the backend's own function

    size_t   limit = 0, used = 0, peak = 0; // bytes
    uint64_t n_buffers = 0;                 // buffers allocated so far

    bool refuses(size_t size) const { return limit > 0 && (used > limit || size > limit - used); }
};

std::mutex                 watch_mutex;
thread_local MemoryRefusal refusal;

std::list<Watched> & watched() {
    static auto * types = new std::list<Watched>; // never destroyed: models may be freed after main()
    return *types;
}

Watched * find_locked(ggml_backend_buffer_type_t type) {
    for (Watched & w : watched()) {
        if (w.type == type) {
            return &w;
        }
    }
    return nullptr;
}

void note_refusal(ggml_backend_dev_t device, size_t asked) {
    if (refusal.device.empty()) {
        refusal = {ggml_backend_dev_name(device), asked, memory_of(device)};
    }
}

// Allocates for a watched buffer type, in place of the backend's own function.
ggml_backend_buffer_t counted_alloc(ggml_backend_buffer_type_t type, size_t size) {
    std::unique_lock lock(watch_mutex);
    Watched &        w       = *find_locked(type);
    const bool       refuses = w.refuses(size);
    w.used += refuses ? 0 : size; // counted before the allocation: another thread may allocate meanwhile
    lock.unlock();

    ggml_backend_buffer_t buffer = refuses ? nullptr : w.alloc(type, size);
    if (buffer == nullptr && !w.is_host) {
        note_refusal(w.device, size);
    }

    lock.lock();
    if (buffer != nullptr && buffer->buft == type) { // if pinning fails, the buffer has another type
        w.used += buffer->size - size;
        w.peak = std::max(w.peak, w.used);
        ++w.n_buffers;
    } else if (!refuses) {
        w.used -= size;
    }
    return buffer;
}

void watch_locked(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, bool is_host) {
    if (type != nullptr && find_locked(type) == nullptr) {
        watched().push_back({device, type, is_host, type->iface.alloc_buffer});
        type->iface.alloc_buffer = counted_alloc;
    }
}

} // namespace

void watch_memory(ggml_backend_dev_t device) {
    const std::lock_guard lock(watch_mutex);
    watch_locked(device, ggml_backend_dev_buffer_type(device), false);
    watch_locked(device, ggml_backend_dev_host_buffer_type(device), true);
}

DeviceMemory memory_of(ggml_backend_dev_t device) {
    DeviceMemory memory;
    ggml_backend_dev_memory(device, &memory.free, &memory.total);
    memory.device_free = memory.free;
    memory.kernels     = kernel_memory(device);
    const std::lock_guard lock(watch_mutex);
    for (const Watched & w : watched()) {
        if (w.device == device && w.is_host) {
            memory.n_host_buffers = w.n_buffers;
        } else if (w.device == device) {
            memory.limit            = w.limit;
            memory.used             = w.used;
            memory.peak             = w.peak;
            memory.n_device_buffers = w.n_buffers;
        }
    }
    if (memory.limit > 0) {
        memory.free = std::min(memory.free, memory.limit - std::min(memory.limit, memory.used));
    }
    return memory;
}

void set_memory_limit(ggml_backend_dev_t device, size_t bytes) {
    watch_memory(device);
    const std::lock_guard lock(watch_mutex);
    Watched &             w = *find_locked(ggml_backend_dev_buffer_type(device));
    w.limit                 = bytes;
    w.peak                  = w.used;
}

size_t take_kernel_refusal(const std::string & name) { return take_kernel_refusal(inner_device(name)); }

MemoryRefusal take_memory_refusal() {
    MemoryRefusal taken;
    std::swap(taken, refusal);
    return taken;
}

} // namespace spac

// The linker sends calls of ggml_backend_buffer_free here (--wrap), and calls of the __real_ name to ggml's function.
// The buffer's own free function cannot be replaced, because ggml's backends recognize their buffers by its address.
extern "C" void __real_ggml_backend_buffer_free(ggml_backend_buffer_t buffer);
extern "C" void __wrap_ggml_backend_buffer_free(ggml_backend_buffer_t buffer);

void __wrap_ggml_backend_buffer_free(ggml_backend_buffer_t buffer) {
    if (buffer != nullptr) {
        const std::lock_guard lock(spac::watch_mutex);
        if (spac::Watched * w = spac::find_locked(buffer->buft)) {
            w->used -= std::min(w->used, buffer->size);
        }
    }
    __real_ggml_backend_buffer_free(buffer);
}
