// Requests of this process: they bring their sampling beside the body, and get the steps of their text as numbers.
#pragma once

#include "backend/device/timer.h"
#include "core/not_copied.h"
#include "session/parallel.h"

#include "common.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace spac {

class OwnRequest : NotCopied {
  public:
    // Returns a new request, which of() finds as long as it lives. Throws InputError for sampling parameters that are
    // invalid. `target` is the context of the loop.
    static std::shared_ptr<OwnRequest> begin(const JoinConfig & config, llama_context * target);
    // begin() calls it.
    OwnRequest(const JoinConfig & config, llama_context * target, uint64_t number);

    // Returns the request with such parameters, or null if they are of no request of this process.
    static std::shared_ptr<OwnRequest> of(const common_params_sampling & params);

    uint64_t number() const { return params_.user_sampling_config; } // at least 1
    size_t   n_unseen() const { return config_.n_unseen; }
    bool     mirostat_penalizes() const { return config_.sampling.mirostat_penalizes; }

    // Adds a step, whose probabilities are those of rows from `first_row` on. The loop's thread calls it.
    void push(SequenceStep step, int first_row);
    // Returns the steps since the last call. Any thread may call it.
    std::vector<SequenceStep> take();

    // Notes why a decode failed. The loop's thread calls it.
    void fail(std::exception_ptr fault);
    // Throws what was noted; does nothing otherwise. Any thread may call it.
    void raise() const;

    // Makes a request the one whose body this thread reads.
    class Reading : NotCopied {
      public:
        explicit Reading(const std::shared_ptr<OwnRequest> & request);
        ~Reading();
    };
    // Returns the sampling parameters of the request whose body this thread reads, or null.
    static const common_params_sampling * read();

  private:
    JoinConfig                config_;
    llama_context *           target_;
    common_params_sampling    params_;
    Clock::time_point         last_;
    bool                      has_begun_ = false;
    mutable std::mutex        lock_; // of what follows
    std::vector<SequenceStep> steps_;
    std::exception_ptr        fault_;
};

} // namespace spac
