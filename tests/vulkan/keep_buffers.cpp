// A library for LD_PRELOAD: it keeps every VkBuffer until the process ends. Their memory is freed as usual.
//
// The lavapipe of Mesa 22.3 binds every buffer that a descriptor set names, also where the shader has no binding, and
// the set holds no reference. ggml's kernels share a layout of 12 bindings, and each one writes only its own bindings.
// So a set can still name a destroyed buffer of an earlier kernel. Vulkan allows that, because the shader cannot read
// it. This lavapipe then counts references in freed memory, and crashes. unused_binding.cpp shows it without ggml.
#include <cstring>
#include <dlfcn.h>
#include <vulkan/vulkan.h>

static void VKAPI_CALL keep_buffer(VkDevice, VkBuffer, const VkAllocationCallbacks *) {}

extern "C" VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    static const auto loader =
        reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr"));
    const bool destroys = strcmp(name, "vkDestroyBuffer") == 0;
    return destroys ? reinterpret_cast<PFN_vkVoidFunction>(keep_buffer) : loader(instance, name);
}
