// The functions of CUDA's driver that ggml-cuda calls for its pool of virtual memory.
//
// They pass each call to the driver. A library that was linked with the driver would not load on machines without one.
// So the driver is looked up here, with the first call. ggml-cuda calls none of these before the CUDA runtime has
// found a device. Where the driver lacks a function, the device is said to have no virtual memory, and ggml-cuda takes
// its older pool. That pool frees its memory when the device is full, and a captured graph would run on freed memory.
// So ggml-cuda captures none then.
#if defined(SPAC_WITH_CUDA)

#include "backend/device/cuda_memory.h"

#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>

#include <dlfcn.h>

namespace spac {
CudaPools cuda_pools;
}

namespace {

// Types and values of cuda.h, which is not at hand where ggml-cuda's objects were compiled elsewhere.
using Status                                 = int;
using Device                                 = int;
using Place                                  = unsigned long long; // CUdeviceptr
using Handle                                 = unsigned long long; // CUmemGenericAllocationHandle
constexpr Status       out_of_memory         = 2;
constexpr Status       not_found             = 500;
constexpr int          has_virtual_memory    = 102; // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
constexpr const char * functions_of_memory[] = {"cuMemGetAllocationGranularity",
                                                "cuMemCreate",
                                                "cuMemRelease",
                                                "cuMemAddressReserve",
                                                "cuMemMap",
                                                "cuMemSetAccess",
                                                "cuMemAddressFree",
                                                "cuMemUnmap"};

void * look_up(const char * name) {
    static void * const driver = dlopen("libcuda.so.1", RTLD_LAZY);
    return driver != nullptr ? dlsym(driver, name) : nullptr;
}

bool has_all() {
    for (const char * name : functions_of_memory) {
        if (look_up(name) == nullptr) {
            return false;
        }
    }
    return true;
}

// Calls the driver's function of that name.
template <typename... Arguments> Status call(const char * name, Arguments... arguments) {
    const auto function = reinterpret_cast<Status (*)(Arguments...)>(look_up(name));
    return function != nullptr ? function(arguments...) : not_found;
}

// The beginning of CUmemAllocationProp, with which ggml-cuda creates memory.
struct Properties {
    int type, handle_types, location_type, card;
};

// Memory of the pools: what was created, and what has an address. Handles and addresses are not used again as long as
// they are known.
struct Pools {
    struct Allocation {
        int    card;
        size_t bytes;
    };

    std::mutex                   mutex;
    std::map<Handle, Allocation> created;
    std::map<Place, Allocation>  mapped;
};

// Never destroyed, because pools are freed after main().
Pools & pools() {
    static auto * one = new Pools;
    return *one;
}

void tell(int card, ptrdiff_t bytes) {
    if (spac::cuda_pools.changed != nullptr) {
        spac::cuda_pools.changed(card, bytes);
    }
}

} // namespace

int spac::cuda_is_capturing(void * stream, int * state) { return call("cuStreamIsCapturing", stream, state); }

int spac::cuda_memory_info(size_t * free, size_t * total) { return call("cuMemGetInfo_v2", free, total); }

extern "C" {

Status cuGetErrorString(Status error, const char ** text) {
    *text = "the driver does not name this error";
    return call("cuGetErrorString", error, text);
}

Status cuDeviceGet(Device * device, int number) { return call("cuDeviceGet", device, number); }

Status cuDeviceGetAttribute(int * value, int attribute, Device device) {
    static const bool all    = has_all();
    Status            status = call("cuDeviceGetAttribute", value, attribute, device);
    if (attribute == has_virtual_memory) {
        *value = status == 0 && all ? *value : 0;
        if (*value == 0) {
            setenv("GGML_CUDA_DISABLE_GRAPHS", "1", 0); // ggml-cuda reads it before its first graph
        }
        return 0;
    }
    return status;
}

Status cuMemGetAllocationGranularity(size_t * bytes, const void * properties, int option) {
    return call("cuMemGetAllocationGranularity", bytes, properties, option);
}

Status cuMemCreate(Handle * handle, size_t size, const void * properties, unsigned long long flags) {
    const Status status = call("cuMemCreate", handle, size, properties, flags);
    const int    card   = static_cast<const Properties *>(properties)->card;
    if (status == 0) {
        Pools &               all = pools();
        const std::lock_guard lock(all.mutex);
        all.created[*handle] = {card, size};
    } else if (status == out_of_memory && spac::cuda_pools.refused != nullptr) {
        spac::cuda_pools.refused(card, size);
    }
    return status;
}

Status cuMemRelease(Handle handle) {
    {
        Pools &               all = pools();
        const std::lock_guard lock(all.mutex);
        all.created.erase(handle);
    }
    return call("cuMemRelease", handle);
}

Status cuMemAddressReserve(Place * place, size_t size, size_t alignment, Place wish, unsigned long long flags) {
    return call("cuMemAddressReserve", place, size, alignment, wish, flags);
}

Status cuMemAddressFree(Place place, size_t size) { return call("cuMemAddressFree", place, size); }

Status cuMemMap(Place place, size_t size, size_t offset, Handle handle, unsigned long long flags) {
    const Status          status = call("cuMemMap", place, size, offset, handle, flags);
    Pools &               all    = pools();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.created.find(handle); status == 0 && found != all.created.end()) {
        all.mapped[place] = found->second;
        tell(found->second.card, static_cast<ptrdiff_t>(size));
    }
    return status;
}

Status cuMemUnmap(Place place, size_t size) {
    {
        Pools &               all = pools();
        const std::lock_guard lock(all.mutex);
        const auto            end = all.mapped.lower_bound(place + size);
        for (auto at = all.mapped.lower_bound(place); at != end; at = all.mapped.erase(at)) {
            tell(at->second.card, -static_cast<ptrdiff_t>(at->second.bytes));
        }
    }
    return call("cuMemUnmap", place, size);
}

Status cuMemSetAccess(Place place, size_t size, const void * access, size_t count) {
    return call("cuMemSetAccess", place, size, access, count);
}

} // extern "C"
#endif
