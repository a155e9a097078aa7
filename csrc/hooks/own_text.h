// This header makes the texts of this process in llama.cpp's loop.
#pragma once

#include "hooks/request_settings.h"
#include "hooks/running.h"
#include "hooks/server_loop.h"

#include "common.h"

#include <memory>

struct mtmd_context;
struct server_context;

namespace spac {

// The parts of a loop that its texts share. They are there until `running` stops.
struct TextsOfLoop {
    const common_params *            params  = nullptr;
    server_context *                 context = nullptr;
    llama_context *                  target  = nullptr;
    std::shared_ptr<mtmd_context>    projector; // null: none
    std::shared_ptr<RequestSettings> settings;
    std::shared_ptr<Running>         running;
};

// Returns a text, as ServerLoop::generate() says. It may outlive the loop.
std::unique_ptr<LoopText> make_text(TextRequest request, const TextsOfLoop & of);

} // namespace spac
