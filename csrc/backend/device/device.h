// The devices that spac can put experts on, and their memory: the part that bindings see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spac {

// A device's memory in bytes. inner_devices.h says what is counted.
struct DeviceMemory {
    size_t   free             = 0; // bytes that may still be allocated, within the limit
    size_t   device_free      = 0; // bytes that are free on the device, whatever the limit
    size_t   total            = 0; // the device's size
    size_t   limit            = 0; // the most that this process may take; 0: no limit
    size_t   used             = 0; // bytes in buffers of this process
    size_t   peak             = 0; // the highest `used` since the limit was set
    uint64_t n_device_buffers = 0; // buffers allocated so far
    uint64_t n_host_buffers   = 0; // buffers allocated so far in host memory that the device copies from

    size_t size() const { return limit > 0 && limit < total ? limit : total; } // the size that it appears to have
};

// A device that the SPAC device can wrap: a real accelerator, or the simulated device.
struct DeviceInfo {
    std::string  name;        // "CUDA0", "simulated", …: the value of --device (case does not matter)
    std::string  description; // the card's model name
    DeviceMemory memory;
    bool         reads_masks;        // its kernels read masks of ids, and have been tested; see set_trust_device_masks
    bool         shares_host_cores;  // it computes on the CPU's cores, so it is as slow as the CPU
    bool         shares_host_memory; // its memory is the host's
    bool         is_integrated;      // it is built into a processor
};

// Returns all devices that can be wrapped, real ones first. It never throws: a missing driver yields no device.
std::vector<DeviceInfo> devices();

// Limits the bytes that all buffers of this process on a device take together, from the next buffer on. 0 means no
// limit. Throws InputError, which names the known devices, if the name is unknown.
void set_memory_limit(const std::string & name, size_t bytes);

// An allocation of device memory that failed, with the device's memory at that moment.
struct MemoryRefusal {
    std::string  device;    // empty: none failed
    size_t       asked = 0; // bytes
    DeviceMemory memory;
};
// Returns the first refusal on this thread since the last call.
MemoryRefusal take_memory_refusal();

} // namespace spac
