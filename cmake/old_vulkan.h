// Declares what ggml-vulkan.cpp uses of the extension VK_EXT_layer_settings where Vulkan's headers are older than
// 1.3.272 and have no such declarations. Debian 12 has 1.3.239. Without the extension, drivers ignore the structure.
#pragma once

#include <vulkan/vulkan_core.h>

#if VK_HEADER_VERSION < 272 // It counts on through 1.2, 1.3 and 1.4.

#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

// The layout is that of VkLayerSettingEXT.
struct LayerSettingEXT {
    const char * layer_name;
    const char * setting_name;
    LayerSettingTypeEXT type;
    uint32_t value_count;
    const void * values;
};

// The layout is that of VkLayerSettingsCreateInfoEXT.
struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : setting_count(static_cast<uint32_t>(settings.size())), settings(settings.data()) {}

    VkStructureType type = static_cast<VkStructureType>(1000496000); // its number in the registry of extensions
    const void * next = nullptr;
    uint32_t setting_count;
    const LayerSettingEXT * settings;
};

} // namespace vk

#endif
