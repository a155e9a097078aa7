// The functions of CUDA's driver that ggml-cuda calls for its pool of virtual memory.
//
// They pass each call to the driver. A library that was linked with the driver would not load on machines without one.
// So the driver is looked up here, with the first call. ggml-cuda calls none of these before the CUDA runtime has
// found a device. Where the driver lacks a function, the device is said to have no virtual memory, and ggml-cuda takes
// its older pool. That pool frees its memory when the device is full, and a captured graph would run on freed memory.
// So ggml-cuda captures none then.
#if defined(SPAC_WITH_CUDA)

#include <cstddef>
#include <cstdlib>

#include <dlfcn.h>

namespace {

// Types and values of cuda.h, which is not at hand where ggml-cuda's objects were compiled elsewhere.
using Status                                 = int;
using Device                                 = int;
using Place                                  = unsigned long long; // CUdeviceptr
using Handle                                 = unsigned long long; // CUmemGenericAllocationHandle
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

} // namespace

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
    return call("cuMemCreate", handle, size, properties, flags);
}

Status cuMemRelease(Handle handle) { return call("cuMemRelease", handle); }

Status cuMemAddressReserve(Place * place, size_t size, size_t alignment, Place wish, unsigned long long flags) {
    return call("cuMemAddressReserve", place, size, alignment, wish, flags);
}

Status cuMemAddressFree(Place place, size_t size) { return call("cuMemAddressFree", place, size); }

Status cuMemMap(Place place, size_t size, size_t offset, Handle handle, unsigned long long flags) {
    return call("cuMemMap", place, size, offset, handle, flags);
}

Status cuMemUnmap(Place place, size_t size) { return call("cuMemUnmap", place, size); }

Status cuMemSetAccess(Place place, size_t size, const void * access, size_t count) {
    return call("cuMemSetAccess", place, size, access, count);
}

} // extern "C"
#endif
