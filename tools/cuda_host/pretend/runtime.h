// What the files that implement the runtime's calls share.
#pragma once

#include "counts.h"

#include <chrono>
#include <cstdint>

#include <cuda_runtime_api.h>

#define PRETEND_API extern "C" [[gnu::visibility("default")]]

namespace pretend {

// Sets the thread's last error, as every call does that fails.
cudaError_t fail(cudaError_t error);

// Waits for all streams; `why` for the trace.
void synchronize_all(const char * why);

// A call that a capture on this thread's stream does not allow. True: say so.
bool under_capture();
void note_capture(int change);

} // namespace pretend
