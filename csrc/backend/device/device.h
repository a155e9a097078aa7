// The devices that spac can put experts on, and their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct ggml_backend_device;

namespace spac {

// A device's memory in bytes. The comment before watch_memory() says what is counted.
struct DeviceMemory {
    size_t   free             = 0; // bytes that may still be allocated, within the limit
    size_t   device_free      = 0; // bytes that are free on the device, whatever the limit
    size_t   total            = 0; // the device's size
    size_t   limit            = 0; // the most that this process may take; 0: no limit
    size_t   used             = 0; // bytes in buffers of this process
    size_t   peak             = 0; // the highest `used` since the limit was set
    size_t   kernels          = 0; // bytes that kernels' pools of this process take, which `used` does not count
    uint64_t n_device_buffers = 0; // buffers allocated so far
    uint64_t n_host_buffers   = 0; // buffers allocated so far in host memory that the device copies from

    size_t size() const { return limit > 0 && limit < total ? limit : total; } // the size that it appears to have
};

// A device that the SPAC device can wrap: a real accelerator, or the simulated device.
struct DeviceInfo {
    std::string  name;        // "CUDA0", "simulated", …: the value of --device (case does not matter)
    std::string  description; // the card's model name
    std::string  pci;         // its address on the PCI bus, as 0000:01:00.0; empty: unknown
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
// Returns the bytes that kernels of a device asked for in vain since the last call; 0 for none. Throws InputError if
// the name is unknown.
size_t take_kernel_refusal(const std::string & name);

// ---- for the backend: the devices that a SPAC device can wrap are the machine's accelerators, which are taken out of
// ggml's registry, and devices that are added to them

// Takes the accelerators that ggml has registered out of its registry. It is called once, while the library is loaded,
// before SPAC itself is registered.
void hide_real_devices();
// Adds a device at the end of the list.
void add_inner_device(ggml_backend_device * device);

// Returns the device of this name; case does not matter. Throws InputError, which names the known devices, if there is
// none.
ggml_backend_device * inner_device(const std::string & name);

// Returns the first device, which is wrapped if no device was chosen.
ggml_backend_device * first_inner_device();

// The count of the device memory that this process holds, and its limit.
//
// All buffers are counted where they are made and freed: llama.cpp's (weights, contexts, compute buffers) and spac's
// (slots, staging, masks, weight streams). Memory that a driver keeps for itself (its context, kernels) is in none of
// the figures, and CUDA's pools of scratch have one of their own. A limit makes a large device act as a small one:
// buffers beyond it are refused, and the free memory is the memory that it leaves. Any thread may call these functions.

// Counts the buffers of a device from now on. Call it before the device's first buffer is made. A second call does
// nothing.
void watch_memory(ggml_backend_device * device);

DeviceMemory memory_of(ggml_backend_device * device);

// Limits the bytes that buffers of this process take together; 0 means no limit. Buffers that exist already stay. The
// peak begins anew.
void set_memory_limit(ggml_backend_device * device, size_t bytes);

} // namespace spac
