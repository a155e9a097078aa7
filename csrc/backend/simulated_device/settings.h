// Settings of the simulated device: its speed, its memory, its faults.
#pragma once

#include <string>

namespace spac {

// A fault of the device. Tests have to notice it.
enum class SimulatedFault {
    none,
    no_kernel,  // it cannot multiply by experts
    unordered,  // its streams do not wait for each other's events
    no_signal,  // a gate's signals never come
    slow_queue, // a call that queues a wait at a gate returns only when the gate is open
    dead,       // its streams never pass a gate
};
// Returns the fault of this name: "", "no-kernel", "unordered", "no-signal", "slow-queue" or "dead". Throws InputError
// for other names.
SimulatedFault simulated_fault(const std::string & name);

// A simulated device's speed and faults, for tests and for demonstrations of a slow link.
struct SimulatedSettings {
    double upload_gb_s  = 0;  // host-to-device bandwidth, which all streams share; 0 = as fast as memory
    double latency_us   = 0;  // added to every copy and launch, except copies into slots, since a link is a pipeline
    double delay_us     = 0;  // largest random delay before every queued operation
    long   memory_mb    = 0;  // memory it claims to have; 0 = half of the host's
    int    fail_uploads = 0;  // number of uploads into slots that fail from now on
    int    n_threads    = 1;  // threads that compute on it
    double spin_us      = 50; // time for which its threads, and threads that wait for it, poll before they sleep
    long   pin_limit_mb = -1; // host memory that its driver registers, in MiB; -1: it has no such function. The
                              // first device's holds for all, which have one driver.
    double kernel_share = 0;  // a stream's kernels take so many times the largest tensor that it has computed

    SimulatedFault fault = SimulatedFault::none;
};
// The most simulated devices that there can be.
constexpr int most_simulated_devices = 16;

// Sets the settings of the simulated device with this index. They apply from now on. The first device, 0, always
// exists. Another one is made, with those before it, by the first call that names it. Throws InputError for an index
// that is out of range.
void set_simulated_device(const SimulatedSettings & settings, int index = 0);
// Returns the settings of a simulated device, those of an untouched one if it does not exist.
SimulatedSettings simulated_settings(int index = 0);

} // namespace spac
