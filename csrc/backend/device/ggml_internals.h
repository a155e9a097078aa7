// ggml's public and internal headers in one place. The internal ones are not a stable interface. So spac compiles
// against the exact pinned source, and no other file of the backend includes them.
#pragma once

// clang-format off
#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"
#include "ggml-backend-impl.h"
// clang-format on
