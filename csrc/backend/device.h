// The devices that spac can put experts on, and the choice of one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace spac {

// What the SPAC device wraps: a real accelerator, or the stand-in.
struct DeviceInfo {
    std::string name;        // "CUDA0", "stand-in", …: what --device takes (case does not matter)
    std::string description; // the card's model name
    size_t      memory_free;
    size_t      memory_total;
    bool        is_stand_in;
};

// All inner devices that can be chosen, real ones first. Never throws: a driver that is missing yields no device.
std::vector<DeviceInfo> devices();

// The wrapping device of the inner device `name`, made on first use and kept until the process ends: a
// ggml_backend_dev_t for llama_model_params.devices. Throws InputError naming the known devices.
void * device_handle(const std::string & name);

// The inner device of the one SPAC device that llama.cpp's registry shows to programs that choose none. Must be called
// before the first model is loaded; the default is the first real device, else the stand-in.
void        set_default_device(const std::string & name);
std::string default_device();

// The stand-in's speed and faults, for tests and for showing what a slow link does. They apply from now on.
struct StandInSettings {
    double upload_gb_s  = 0;  // host-to-device bandwidth; 0 = as fast as memory
    double latency_us   = 0;  // added to every copy and launch
    double delay_us     = 0;  // a random delay up to this before every queued operation
    long   memory_mb    = 0;  // memory it claims to have; 0 = half of the host's
    int    fail_uploads = 0;  // the next so many uploads into slots fail
    int    n_threads    = 1;  // threads that compute on it
    double spin_us      = 50; // how long its threads, and who waits for it, look before they sleep
};
void            set_stand_in(const StandInSettings & settings);
StandInSettings stand_in();

// Faults for negative controls in tests ("": none; "swap-slots": two slots of every pool are exchanged behind the
// mask's back; "drop-join": the host's rows are not joined; "early-turn": a large
// batch reads experts that may not have come yet; "no-kernel": the device cannot compute experts; "compact": no fault,
// but the device side compacts (token, expert) pairs instead of reading the mask).
void set_fault(const std::string & fault);

} // namespace spac
