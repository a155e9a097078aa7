#include "hooks/own_requests.h"

#include "core/error.h"
#include "hooks/loop_hooks.h"
#include "server-queue.h"
#include "session/token_probabilities.h"
#include "session/token_sampler.h"

#include <algorithm>
#include <utility>

namespace spac {

namespace {

struct Entry {
    uint64_t                  number  = 0;
    const server_response *   results = nullptr;
    int                       task    = -1;
    std::weak_ptr<OwnRequest> request;
};

std::mutex         lock; // of what follows
std::vector<Entry> entries;
uint64_t           last_number = 0;

// Returns the request of the entry that fits, or null.
template <typename Fits> std::shared_ptr<OwnRequest> find(Fits fits) {
    const std::lock_guard hold(lock);
    for (const auto & each : entries) {
        if (auto request = fits(each) ? each.request.lock() : nullptr) {
            return request;
        }
    }
    return nullptr;
}

// Returns the error that a result stands for.
std::exception_ptr error_of(const server_task_result_error & result) {
    const auto [cause, type] = LoopHooks::error_of(result.err_msg, result.err_type);
    switch (type) {
    case ERROR_TYPE_SERVER:
    case ERROR_TYPE_NOT_SUPPORTED:
        return cause.find("needs more memory than") == std::string::npos ? std::make_exception_ptr(Error(cause))
                                                                         : std::make_exception_ptr(MemoryError(cause));
    case ERROR_TYPE_UNAVAILABLE: // the memory that the slots share is full
        return std::make_exception_ptr(MemoryError(cause));
    default:
        return std::make_exception_ptr(InputError(cause));
    }
}

} // namespace

// llama.cpp copies the parameters, and its server takes no notice of the field that has the number.
OwnRequest::OwnRequest(const JoinConfig & config, llama_context * target, uint64_t number)
    : config_(config), target_(target),
      params_(sampling_params(config.sampling, llama_get_model(target), static_cast<int>(llama_n_ctx_seq(target)))) {
    params_.user_sampling_config = number;
}

std::shared_ptr<OwnRequest> OwnRequest::begin(const JoinConfig & config, llama_context * target) {
    const std::lock_guard hold(lock);
    entries.erase(
        std::remove_if(entries.begin(), entries.end(), [](const auto & each) { return each.request.expired(); }),
        entries.end());
    auto request = std::make_shared<OwnRequest>(config, target, ++last_number);
    entries.push_back({last_number, nullptr, -1, request});
    return request;
}

std::shared_ptr<OwnRequest> OwnRequest::of(const common_params_sampling & params) {
    return find([&](const auto & each) { return each.number == params.user_sampling_config; });
}

std::shared_ptr<OwnRequest> OwnRequest::of(const server_response & results, int task) {
    return find([&](const auto & each) { return each.results == &results && each.task == task; });
}

void OwnRequest::await(const server_response * results, int task) {
    const std::lock_guard hold(lock);
    for (auto & each : entries) {
        if (each.number == number()) {
            each.results = results;
            each.task    = task;
        }
    }
}

void OwnRequest::push(SequenceStep step, int first_row) {
    if (config_.n_top >= 0) {
        step.probabilities = token_probabilities(target_, step.tokens, config_.n_top, first_row);
    }
    step.ns    = has_begun_ ? ns_since(last_) : 0;
    has_begun_ = true;
    last_      = Clock::now();
    const std::lock_guard hold(lock_);
    news_.steps.push_back(std::move(step));
    changed_.notify_all();
}

void OwnRequest::fail(std::exception_ptr fault) {
    const std::lock_guard hold(lock_);
    fault_ = std::move(fault);
}

void OwnRequest::tell(server_task_result & result) {
    const std::lock_guard hold(lock_);
    if (result.is_error()) {
        error_ = error_of(static_cast<const server_task_result_error &>(result));
    } else if (result.is_stop()) {
        news_.is_over = true;
    } else if (const auto & part = static_cast<const server_task_result_cmpl_partial &>(result); part.is_progress) {
        news_.progress.emplace_back(part.progress.processed, part.progress.cache);
    } else {
        return;
    }
    changed_.notify_all();
}

TextNews OwnRequest::next() {
    std::unique_lock hold(lock_);
    const auto       has_news = [&] { return !news_.steps.empty() || !news_.progress.empty() || news_.is_over; };
    changed_.wait(hold, [&] { return stops_ || error_ != nullptr || has_news(); });
    if (!stops_ && !has_news()) {
        std::rethrow_exception(fault_ != nullptr ? fault_ : error_);
    }
    TextNews news   = std::exchange(news_, {});
    news.is_stopped = stops_;
    news_.is_over   = news.is_over;
    return news;
}

void OwnRequest::stop() {
    const std::lock_guard hold(lock_);
    stops_ = true;
    changed_.notify_all();
}

bool OwnRequest::is_over() const {
    const std::lock_guard hold(lock_);
    return news_.is_over || error_ != nullptr;
}

} // namespace spac
