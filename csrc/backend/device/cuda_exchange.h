// The exchange of CUDA devices. Its kernels are in cuda_exchange.cu.
#pragma once

#include "backend/device/exchange.h"

#include <memory>

namespace spac {

// Makes the exchange of a CUDA stream. `signal` is the word in pinned memory that signals go to. `ticket` is a word on
// the device, which is zero and belongs to this exchange.
std::unique_ptr<Exchange> cuda_exchange(void * stream, uint32_t * signal, uint32_t * ticket);

} // namespace spac
