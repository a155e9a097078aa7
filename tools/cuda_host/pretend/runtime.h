// Functions that the files with the runtime's calls share.
#pragma once

#include "counts.h"

#include <chrono>
#include <cstdint>

#include <cuda_runtime_api.h>

#define PRETEND_API extern "C" [[gnu::visibility("default")]]

namespace pretend {

// Sets the thread's last error. Every call that fails does so.
cudaError_t fail(cudaError_t error);

// Waits for all streams. `why` goes to the trace.
void synchronize_all(const char * why);

// Returns true while a capture on a stream of this thread forbids calls. The caller reports the misuse.
bool under_capture();
void note_capture(int change);

} // namespace pretend
