// Requests of this process: they bring their sampling beside the task, and get the steps of their text as numbers.
#pragma once

#include "backend/device/timer.h"
#include "core/not_copied.h"
#include "hooks/loop_text.h"
#include "session/parallel.h"

#include "common.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

struct server_response;
struct server_task_result;

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
    // Returns the request that awaits the results of a task, or null.
    static std::shared_ptr<OwnRequest> of(const server_response & results, int task);

    uint64_t                       number() const { return params_.user_sampling_config; } // at least 1
    size_t                         n_unseen() const { return config_.n_unseen; }
    int                            n_top() const { return config_.n_top; }
    const std::vector<int32_t> &   scored() const { return config_.scored; }
    bool                           mirostat_penalizes() const { return config_.sampling.mirostat_penalizes; }
    const common_params_sampling & params() const { return params_; }

    // Makes it the request that gets the results of a task, before the task is posted. Null: of none.
    void await(const server_response * results, int task);

    // Adds a step, whose probabilities are those of rows from `first_row` on. The loop's thread calls it.
    void push(SequenceStep step, int first_row);
    // Notes why a decode failed. It counts more than the result that says so. The loop's thread calls it.
    void fail(std::exception_ptr fault);
    // Takes a result of the task. The tokens of a text came with push() before. The loop's thread calls it.
    void tell(server_task_result & result);

    // Waits for news, and returns them. Any thread may call it. Throws what fail() or a result's error said when there
    // is nothing else to return.
    TextNews next();
    // Lets next() return at once from now on.
    void stop();
    // Returns true if a result has ended the text.
    bool is_over() const;

  private:
    JoinConfig              config_;
    llama_context *         target_;
    common_params_sampling  params_;
    Clock::time_point       last_;
    bool                    has_begun_ = false;
    mutable std::mutex      lock_; // of what follows
    std::condition_variable changed_;
    TextNews                news_;
    bool                    stops_ = false;
    std::exception_ptr      fault_, error_; // of a decode; of a result
};

} // namespace spac
