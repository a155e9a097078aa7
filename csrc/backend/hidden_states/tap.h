// The interface of a tap: it gives a context's hidden states at the input of every layer's FFN (behind attention,
// residual and FFN norm), for each token that the context decodes alone. Schedulers multiply a drafting model's states
// with the target's routers (SP-MoE, section 3.2).
//
// This header is part of the backend's public interface (experts.h), and names no ggml type. stream_tap.h implements
// it.
#pragma once

#include "core/home_process.h"

#include <cstdint>
#include <memory>

namespace spac {

// A tap of one context. Only the thread that uses the context may use it, between decodes.
class Tap {
  public:
    virtual ~Tap() = default;

    const HomeProcess home;

    // Return the number of FFNs that were found in the context's graphs, one per layer, in the order in which they run,
    // and their width. Both are 0 before the context is made, and if its graphs do not run wholly on the SPAC device.
    virtual int n_layer() const = 0;
    virtual int n_embd() const  = 0;

    // Switches whether decodes are tapped from now on. It is off at first, and then costs nothing. Throws MemoryError
    // if the device has no memory for one token's states.
    virtual void set_on(bool on) = 0;

    // Returns states[n_layer * n_embd] of the token that was decoded last, in memory that the next decode overwrites.
    // It is null if the token was not tapped or was decoded together with others. Read the token's logits first, which
    // waits for the device.
    virtual std::shared_ptr<const float> states() const = 0;
    // Returns the number of tokens that were tapped so far.
    virtual uint64_t n_tapped() const = 0;
};

std::shared_ptr<Tap> new_tap();

// A scope that binds a tap to a context: the one that is made on this thread while the scope lives. Scopes nest, and
// each is for one context.
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
