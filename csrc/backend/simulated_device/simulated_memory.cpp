
#include "backend/simulated_device/settings.h"
#include "backend/simulated_device/simulated_device.h"
#include "core/pinned_ranges.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

namespace spac {
namespace {

constexpr size_t alignment = 128;
constexpr size_t huge_page = 2 << 20;

size_t host_memory() {
    return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t memory_total(const SimulatedDevice & device) {
    const SimulatedSettings s = device.settings();
    return s.memory_mb > 0 ? static_cast<size_t>(s.memory_mb) << 20 : host_memory() / 2;
}

SimulatedDevice & device_of(ggml_backend_buffer_type_t type) { return simulated_of(type->device); }

const char * buft_name(ggml_backend_buffer_type_t type) { return device_of(type).name(); }
size_t       buft_alignment(ggml_backend_buffer_type_t) { return alignment; }
bool         buft_is_host(ggml_backend_buffer_type_t) { return false; }

void buffer_free(ggml_backend_buffer_t buffer) {
    device_of(buffer->buft).memory_used -= buffer->size;
    free(buffer->context);
}
void * buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }
void   buffer_memset(ggml_backend_buffer_t, ggml_tensor * t, uint8_t value, size_t offset, size_t size) {
      memset(static_cast<char *>(t->data) + offset, value, size);
}
// As on a GPU, these functions are not ordered with any stream. The caller has waited for the operations that matter.
void buffer_set(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    simulated_check_source(data, size);
    memcpy(static_cast<char *>(t->data) + offset, data, size);
}
void buffer_get(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    memcpy(data, static_cast<const char *>(t->data) + offset, size);
}
bool buffer_cpy(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    ggml_backend_buffer_t from = src->view_src ? src->view_src->buffer : src->buffer;
    if (from->buft->iface.get_name != buft_name) {
        return false; // not the memory of a simulated device
    }
    memcpy(dst->data, src->data, ggml_nbytes(src));
    return true;
}
void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(buffer->context, value, buffer->size); }

const ggml_backend_buffer_i buffer_iface = {
    /* .free_buffer   = */ buffer_free,
    /* .get_base      = */ buffer_base,
    /* .init_tensor   = */ nullptr,
    /* .memset_tensor = */ buffer_memset,
    /* .set_tensor    = */ buffer_set,
    /* .get_tensor    = */ buffer_get,
    /* .set_tensor_2d = */ nullptr,
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ buffer_cpy,
    /* .clear         = */ buffer_clear,
    /* .reset         = */ nullptr,
};

ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    SimulatedDevice & device = device_of(buft);
    if (!device.take(size)) {
        return nullptr;
    }
    const size_t page = size < 2 * huge_page ? alignment : huge_page;
    void *       data = std::aligned_alloc(page, (size / page + 1) * page);
    if (data == nullptr) {
        device.memory_used -= size;
        return nullptr;
    }
    if (page == huge_page) {
        madvise(data, size, MADV_HUGEPAGE); // weights are read faster; a failure does no harm
    }
    return ggml_backend_buffer_init(buft, buffer_iface, data, size);
}

// ---- pinned memory: plain host memory under its own name
const char *          pinned_name(ggml_backend_buffer_type_t) { return "simulated_Host"; }
ggml_backend_buffer_t pinned_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer != nullptr) {
        buffer->buft = buft;
    }
    return buffer;
}

// ---- registered host memory

struct Registered {
    std::mutex               mutex;
    PinnedRanges             ranges;
    std::map<void *, size_t> sizes;
    size_t                   sum = 0;
};

// Returns the registrations. They are never destroyed, since models may be freed while the process ends.
Registered & registered() {
    static auto * books = new Registered;
    return *books;
}

} // namespace

bool SimulatedDevice::take(size_t bytes) {
    if (memory_used.fetch_add(bytes) + bytes > memory_total(*this)) {
        memory_used -= bytes;
        return false;
    }
    return true;
}

bool simulated_register(void * begin, size_t bytes) {
    const long            limit = simulated_settings().pin_limit_mb;
    Registered &          books = registered();
    const std::lock_guard lock(books.mutex);
    if (limit < 0 || books.sum + bytes > static_cast<size_t>(limit) << 20 ||
        books.ranges.pinned_bytes(begin, bytes) > 0) {
        return false;
    }
    books.ranges.add(begin, bytes);
    books.sum += books.sizes[begin] = bytes;
    return true;
}

void simulated_unregister(void * begin) {
    Registered &          books = registered();
    const std::lock_guard lock(books.mutex);
    const auto            found = books.sizes.find(begin);
    GGML_ASSERT(found != books.sizes.end() && "host memory is unregistered that is not registered");
    books.sum -= found->second;
    books.sizes.erase(found);
    books.ranges.remove(begin);
}

void simulated_check_source(const void * data, size_t bytes) {
    GGML_ASSERT(registered().ranges.slices(data, bytes).size() <= 1 && "a copy's source is registered in part");
}

void simulated_memory(const SimulatedDevice & device, size_t * free, size_t * total) {
    *total            = memory_total(device);
    const size_t used = device.memory_used;
    *free             = used < *total ? *total - used : 0;
}

ggml_backend_buffer_type simulated_memory_type(SimulatedDevice & device) {
    return {{buft_name, buft_alloc, buft_alignment, nullptr, nullptr, buft_is_host}, device.handle(), nullptr};
}

ggml_backend_buffer_type simulated_pinned_type(SimulatedDevice & device) {
    ggml_backend_buffer_type type = {ggml_backend_cpu_buffer_type()->iface, device.handle(), nullptr};
    type.iface.get_name           = pinned_name;
    type.iface.alloc_buffer       = pinned_alloc;
    return type;
}

} // namespace spac
