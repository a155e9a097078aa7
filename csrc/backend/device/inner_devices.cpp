#include "backend/device/device.h"

#include "backend/device/capabilities.h"
#include "backend/device/ggml_internals.h"
#include "core/error.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <vector>

namespace spac {
namespace {

// Guards the list, to which simulated devices may be added at any time.
std::mutex list_mutex;

// Returns the list of devices, which llama.cpp's registry does not show. The first call makes it, because the library's
// constructor fills it before this file's static objects are made; a static object would be emptied again.
std::vector<ggml_backend_dev_t> & inner_devices() {
    static auto * devices = new std::vector<ggml_backend_dev_t>;
    return *devices;
}

std::vector<ggml_backend_dev_t> listed() {
    const std::lock_guard lock(list_mutex);
    return inner_devices();
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

std::string pci_of(ggml_backend_dev_t dev) {
    ggml_backend_dev_props props = {};
    ggml_backend_dev_get_props(dev, &props);
    return props.device_id != nullptr ? props.device_id : "";
}

} // namespace

// Graphics cards come first, then devices that are built into a processor and share its memory.
void hide_real_devices() {
    std::vector<ggml_backend_reg_t> regs;
    for (const auto type : {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU}) {
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            if (ggml_backend_dev_type(dev) == type) {
                inner_devices().push_back(dev);
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

void add_inner_device(ggml_backend_dev_t device) {
    const std::lock_guard lock(list_mutex);
    inner_devices().push_back(device);
}

ggml_backend_dev_t inner_device(const std::string & name) {
    const std::string wanted = lower(name);
    for (ggml_backend_dev_t dev : listed()) {
        if (lower(ggml_backend_dev_name(dev)) == wanted) {
            return dev;
        }
    }
    throw InputError("unknown device '" + name + "': this machine has " + known_devices());
}

ggml_backend_dev_t first_inner_device() { return listed().front(); }

std::vector<DeviceInfo> devices() {
    std::vector<DeviceInfo> infos;
    for (ggml_backend_dev_t dev : listed()) {
        const Capabilities can = capabilities_of(dev);
        DeviceInfo         info;
        info.name               = ggml_backend_dev_name(dev);
        info.description        = ggml_backend_dev_description(dev);
        info.pci                = pci_of(dev);
        info.memory             = memory_of(dev);
        info.reads_masks        = can.masked_kernels;
        info.shares_host_cores  = can.shares_host_cores;
        info.shares_host_memory = can.shares_host_memory;
        info.is_integrated      = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_IGPU;
        infos.push_back(std::move(info));
    }
    return infos;
}

} // namespace spac
