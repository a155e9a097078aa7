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

// Waits for the streams of a card, or for those of all cards.
constexpr int all_cards = -1;
void          synchronize_card(int card);

bool is_card(int device);

// Returns true while a capture on a stream of this thread forbids calls. The caller reports the misuse.
bool under_capture();
void note_capture(int change);

} // namespace pretend
