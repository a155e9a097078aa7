#include "backend/experts/expert_store.h"

#include "backend/device/settings.h"
#include "backend/experts/model_experts.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include <sys/mman.h>

namespace spac {
namespace {

// Bytes. ggml's CPU kernels need tensors at such addresses.
constexpr size_t alignment = 64;

struct StoreBuffer {
    std::shared_ptr<ModelExperts> experts;
    char *                        data;
    ggml_backend_buffer_t         owned;      // the memory of `data`; null if `data` is a mapping of the model's file
    size_t                        pinned = 0; // bytes of `owned` that the driver has allocated
    std::vector<Extent>           weights;    // the weights in a mapping
    std::once_flag                asked;      // the driver was asked to register the mapping
    std::optional<PinnedMapping>  registered;
};

StoreBuffer & state(ggml_backend_buffer_t buffer) { return *static_cast<StoreBuffer *>(buffer->context); }

void buffer_free(ggml_backend_buffer_t buffer) {
    StoreBuffer * s = &state(buffer);
    s->experts->store_gone();
    if (s->pinned > 0) {
        s->experts->pinned.remove(s->data);
        uncount_pinned(s->pinned);
    }
    s->registered.reset();
    ggml_backend_buffer_free(s->owned);
    delete s;
}
// Gives the pages between the experts of a paged file back to the system. Most dense weights lie there, and the device
// has them by now. The system reads what is touched again.
void drop_gaps(StoreBuffer & s, size_t size) {
    std::sort(s.weights.begin(), s.weights.end(), [](const Extent & a, const Extent & b) { return a.begin < b.begin; });
    auto begin = reinterpret_cast<uintptr_t>(s.data);
    for (const Extent & weight : s.weights) {
        advise({begin, weight.begin}, MADV_PAGEOUT);
        begin = std::max(begin, weight.end);
    }
    advise({begin, reinterpret_cast<uintptr_t>(s.data) + size}, MADV_PAGEOUT);
}

// Notes where weights lie in a mapping, for PinnedMapping, whose registrations begin and end inside weights.
ggml_status buffer_init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * t) {
    StoreBuffer & s = state(buffer);
    if (s.owned == nullptr && t->view_src == nullptr) {
        const auto begin = reinterpret_cast<uintptr_t>(t->data);
        s.weights.push_back({begin, begin + ggml_nbytes(t)});
    }
    return GGML_STATUS_SUCCESS;
}
void * buffer_base(ggml_backend_buffer_t buffer) { return state(buffer).data; }
void   buffer_memset(ggml_backend_buffer_t, ggml_tensor * t, uint8_t value, size_t offset, size_t size) {
      memset(static_cast<char *>(t->data) + offset, value, size);
}
void buffer_set(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    memcpy(static_cast<char *>(t->data) + offset, data, size);
}
void buffer_get(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    memcpy(data, static_cast<const char *>(t->data) + offset, size);
}
void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(state(buffer).data, value, buffer->size); }

const ggml_backend_buffer_i buffer_iface = {
    /* .free_buffer   = */ buffer_free,
    /* .get_base      = */ buffer_base,
    /* .init_tensor   = */ buffer_init_tensor,
    /* .memset_tensor = */ buffer_memset,
    /* .set_tensor    = */ buffer_set,
    /* .get_tensor    = */ buffer_get,
    /* .set_tensor_2d = */ nullptr,
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ nullptr,
    /* .clear         = */ buffer_clear,
    /* .reset         = */ nullptr,
};

Store & store_of(ggml_backend_buffer_type_t buft) { return *static_cast<Store *>(buft->context); }

ggml_backend_buffer_t make_buffer(Store & store, void * data, size_t size, ggml_backend_buffer_t owned,
                                  ModelExperts::HostMemory memory) {
    auto state       = std::make_unique<StoreBuffer>();
    state->experts   = experts_for_load();
    state->data      = static_cast<char *>(data);
    state->owned     = owned;
    const bool paged = owned == nullptr && state->experts->paged();
    state->experts->set_device(store.inner(), paged ? ModelExperts::HostMemory::pageable : memory);
    return ggml_backend_buffer_init(store.buffer_type(), buffer_iface, state.release(), size);
}

const char * buft_name(ggml_backend_buffer_type_t buft) { return store_of(buft).name(); }

ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    Store &                    store  = store_of(buft);
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(store.inner());
    Unpinned   why = !pinning().on ? Unpinned::off : size > pinning_room() ? Unpinned::limit : Unpinned::none;
    const bool ask = pinned != nullptr && why == Unpinned::none;
    ggml_backend_buffer_t owned = ask ? ggml_backend_buft_alloc_buffer(pinned, size) : nullptr;
    // CUDA's buffer type falls back to pageable memory, in a buffer of the CPU's type
    const bool is_pinned = owned != nullptr && owned->buft == pinned;
    why                  = ask && !is_pinned ? Unpinned::refused : why;
    if (owned == nullptr) {
        owned = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    }
    if (owned == nullptr) {
        return nullptr;
    }
    ggml_backend_buffer_t buffer =
        make_buffer(store, ggml_backend_buffer_get_base(owned), size, owned,
                    is_pinned ? ModelExperts::HostMemory::pinned : ModelExperts::HostMemory::pageable);
    StoreBuffer & s = state(buffer);
    if (is_pinned) {
        s.experts->pinned.add(s.data, size);
        count_pinned(size);
        s.pinned = size;
    } else if (pinned != nullptr) {
        s.experts->note_unpinned(why);
    }
    return buffer;
}

size_t buft_alignment(ggml_backend_buffer_type_t) { return alignment; }
bool   buft_is_host(ggml_backend_buffer_type_t) { return true; }

// ---- the hidden device, with the functions that the loader calls

const char *               device_name(ggml_backend_dev_t dev) { return static_cast<Store *>(dev->context)->name(); }
const char *               device_description(ggml_backend_dev_t) { return "all experts, in host memory"; }
void                       device_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props                           = {};
    props->name                      = device_name(dev);
    props->description               = device_description(dev);
    props->type                      = device_type(dev);
    props->caps.buffer_from_host_ptr = true;
    props->caps.mmap_support         = true;
}

ggml_backend_t             device_init(ggml_backend_dev_t, const char *) { return nullptr; }
ggml_backend_buffer_type_t device_buft(ggml_backend_dev_t dev) {
    return static_cast<Store *>(dev->context)->buffer_type();
}

ggml_backend_buffer_t device_from_host_ptr(ggml_backend_dev_t dev, void * ptr, size_t size, size_t) {
    Store &    store = *static_cast<Store *>(dev->context);
    const bool can   = can_register(store.inner()); // an assumption, until register_store has tried
    return make_buffer(store, ptr, size, nullptr,
                       can ? ModelExperts::HostMemory::pinned_mapping : ModelExperts::HostMemory::pageable);
}

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor *) { return false; }
bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) { return buft == device_buft(dev); }

const ggml_backend_device_i device_iface = {
    /* .get_name             = */ device_name,
    /* .get_description      = */ device_description,
    /* .get_memory           = */ device_memory,
    /* .get_type             = */ device_type,
    /* .get_props            = */ device_props,
    /* .init_backend         = */ device_init,
    /* .get_buffer_type      = */ device_buft,
    /* .get_host_buffer_type = */ nullptr,
    /* .buffer_from_host_ptr = */ device_from_host_ptr,
    /* .supports_op          = */ device_supports_op,
    /* .supports_buft        = */ device_supports_buft,
    /* .offload_op           = */ nullptr,
    /* .event_new            = */ nullptr,
    /* .event_free           = */ nullptr,
    /* .event_synchronize    = */ nullptr,
};

const ggml_tensor * root(const ggml_tensor * t) { return t->view_src ? t->view_src : t; }

} // namespace

Store::Store(std::string name, ggml_backend_dev_t (*get_inner)(void *), void * inner_context)
    : name_(std::move(name)), inner_(get_inner), inner_context_(inner_context), device_{device_iface, nullptr, this},
      buft_{{buft_name, buft_alloc, buft_alignment, nullptr, nullptr, buft_is_host}, &device_, this} {}

bool is_store(ggml_backend_buffer_type_t buft) { return buft->iface.get_name == buft_name; }

bool in_store(const ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = root(t)->buffer;
    return buffer != nullptr && is_store(buffer->buft);
}

void register_store(const ggml_tensor * store_tensor) {
    const ggml_backend_buffer_t buffer = root(store_tensor)->buffer;
    StoreBuffer &               s      = state(buffer);
    if (s.owned != nullptr) {
        return;
    }
    if (s.experts->paged()) {
        std::call_once(s.asked, [&] { drop_gaps(s, buffer->size); });
        return;
    }
    std::call_once(s.asked, [&] {
        ggml_backend_dev_t inner = store_of(buffer->buft).inner();
        const auto         begin = reinterpret_cast<uintptr_t>(s.data);
        s.registered.emplace(s.experts->pinned);
        // a driver that has refused once is not asked again: it might use up memory that staging needs
        const Unpinned why = s.experts->unpinned() == Unpinned::refused
                                 ? Unpinned::refused
                                 : s.registered->make(inner, {begin, begin + buffer->size}, std::move(s.weights));
        if (why != Unpinned::none) {
            s.experts->set_device(inner, ModelExperts::HostMemory::pageable);
            s.experts->note_unpinned(why);
        }
    });
}

ggml_backend_dev_t device_of_store(const ggml_tensor * store_tensor) {
    return store_of(root(store_tensor)->buffer->buft).inner();
}

std::shared_ptr<ModelExperts> experts_of(const ggml_tensor * store_tensor) {
    return state(root(store_tensor)->buffer).experts;
}

} // namespace spac
