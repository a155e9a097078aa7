// The devices that spac can put experts on, and their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spac {

// A device's memory in bytes (device_memory.h says what is counted).
struct DeviceMemory {
    size_t   free             = 0; // what may still be allocated: within the limit
    size_t   total            = 0; // of the device
    size_t   limit            = 0; // on what this process takes; 0: none
    size_t   used             = 0; // by buffers of this process
    size_t   peak             = 0; // of `used`, since the limit was set
    uint64_t n_device_buffers = 0; // allocated so far
    uint64_t n_host_buffers   = 0; // allocated so far: host memory that the device copies from

    size_t size() const { return limit > 0 && limit < total ? limit : total; } // what it acts as having
};

// What the SPAC device wraps: a real accelerator, or the simulated device.
struct DeviceInfo {
    std::string  name;        // "CUDA0", "simulated", …: what --device takes (case does not matter)
    std::string  description; // the card's model name
    DeviceMemory memory;
    bool         reads_masks;        // its kernels read ids masks, and have been tried; see set_trust_device_masks
    bool         shares_host_cores;  // it computes on the CPU's cores, and is no faster than the CPU
    bool         shares_host_memory; // its memory is the host's
};

// All inner devices that can be chosen, real ones first. Never throws: a driver that is missing yields no device.
std::vector<DeviceInfo> devices();

// Has the buffers of this process on a device take so many bytes together at most, from the next one on; 0: as many as
// there are. Throws InputError naming the known devices.
void set_memory_limit(const std::string & name, size_t bytes);

// An allocation of device memory that failed, with what there was at that moment.
struct MemoryRefusal {
    std::string  device; // empty: none failed
    size_t       asked = 0;
    DeviceMemory memory;
};
// The first one on this thread since the last call.
MemoryRefusal take_memory_refusal();

} // namespace spac
