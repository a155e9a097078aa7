// Declares what ggml-vulkan.cpp names of the extension VK_EXT_layer_settings where Vulkan's headers are older than
// 1.3.272 and lack it. Debian 12 has 1.3.239. The extension only asks the validation layer for its best practices, so
// a build with such headers hands nothing to the driver: the structure's address is null.
#pragma once

#include <vulkan/vulkan_core.h>

#if VK_HEADER_VERSION < 272 // It counts on through 1.2, 1.3 and 1.4.

#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT { eBool32 };

struct LayerSettingEXT {
    const char *        layer_name;
    const char *        setting_name;
    LayerSettingTypeEXT type;
    uint32_t            value_count;
    const void *        values;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> &) {}
    const void * operator&() const { return nullptr; }
};

} // namespace vk

#endif
