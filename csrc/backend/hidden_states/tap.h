// What enters the FFN of every layer of one context, for each token that it decodes alone: a drafting model's hidden
// states (behind attention, residual and FFN norm), which schedulers show to the target's routers (SP-MoE,
// section 3.2).
//
// This header is part of the backend's public face (experts.h): it names no ggml type. stream_tap.h has the other side.
#pragma once

#include "core/home_process.h"

#include <cstdint>
#include <memory>

namespace spac {

// Used by the thread that uses the context, between its decodes.
class Tap {
  public:
    virtual ~Tap() = default;

    const HomeProcess home;

    // The FFNs that were found in the context's graphs, one a layer, in the order in which they run, and their width. 0
    // before the context is made, and where its graphs do not run on the SPAC device in one piece.
    virtual int n_layer() const = 0;
    virtual int n_embd() const  = 0;

    // Whether decodes from now on are tapped; off at first, and then it costs nothing. Throws MemoryError when the
    // device has no room for one token's states.
    virtual void set_on(bool on) = 0;

    // states[n_layer * n_embd] of the token decoded last, in memory that the next decode writes to; null where it was
    // not tapped, or was decoded with others. Its logits must have been read: that waits for the device.
    virtual std::shared_ptr<const float> states() const = 0;
    // Tokens that were tapped so far.
    virtual uint64_t n_tapped() const = 0;
};

std::shared_ptr<Tap> new_tap();

// The context that is made on this thread while the scope lives is the tap's. Scopes nest; each is for one context.
class TapScope {
  public:
    explicit TapScope(std::shared_ptr<Tap> tap);
    ~TapScope();
    TapScope(const TapScope &)             = delete;
    TapScope & operator=(const TapScope &) = delete;

  private:
    std::shared_ptr<Tap> outer_;
};

} // namespace spac
