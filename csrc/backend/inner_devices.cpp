#include "backend/inner_devices.h"

#include "backend/device_memory.h"
#include "backend/ggml_internals.h"
#include "backend/stand_in.h"
#include "core/error.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

namespace spac {
namespace {

// Hidden from llama.cpp's registry. Made when it is first asked for: the library's constructor fills it before this
// file's own objects are made, which would empty it again.
std::vector<ggml_backend_dev_t> & real_devices() {
    static auto * devices = new std::vector<ggml_backend_dev_t>;
    return *devices;
}

std::string lower(std::string s) {
    std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return s;
}

std::string known_devices() {
    std::string names;
    for (const DeviceInfo & info : devices()) {
        names += (names.empty() ? "" : ", ") + lower(info.name);
    }
    return names;
}

} // namespace

// Cards come first, then what is built into a processor and shares its memory.
void hide_real_devices() {
    std::vector<ggml_backend_reg_t> regs;
    for (const auto type : {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU}) {
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            if (ggml_backend_dev_type(dev) == type) {
                real_devices().push_back(dev);
                if (std::find(regs.begin(), regs.end(), dev->reg) == regs.end()) {
                    regs.push_back(dev->reg);
                }
            }
        }
    }
    for (ggml_backend_reg_t reg : regs) {
        ggml_backend_unload(reg);
    }
}

ggml_backend_dev_t inner_device(const std::string & name) {
    const std::string wanted = lower(name);
    for (ggml_backend_dev_t dev : real_devices()) {
        if (lower(ggml_backend_dev_name(dev)) == wanted) {
            return dev;
        }
    }
    if (wanted != "stand-in") {
        throw InputError("unknown device '" + name + "': this machine has " + known_devices());
    }
    return stand_in_device();
}

bool masks_tried(ggml_backend_dev_t device) {
    return device == stand_in_device() || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU ||
           std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "CUDA") == 0;
}

bool kernels_reach_host(ggml_backend_dev_t device) { return masks_tried(device); }

ggml_backend_dev_t first_inner_device() { return real_devices().empty() ? stand_in_device() : real_devices().front(); }

std::vector<DeviceInfo> devices() {
    std::vector<ggml_backend_dev_t> all = real_devices();
    all.push_back(stand_in_device());
    std::vector<DeviceInfo> infos;
    for (ggml_backend_dev_t dev : all) {
        DeviceInfo info;
        info.name        = ggml_backend_dev_name(dev);
        info.description = ggml_backend_dev_description(dev);
        info.memory      = memory_of(dev);
        info.is_stand_in = dev == stand_in_device();
        info.reads_masks = masks_tried(dev);
        infos.push_back(std::move(info));
    }
    return infos;
}

} // namespace spac
