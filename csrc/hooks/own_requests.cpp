#include "hooks/own_requests.h"

#include "session/token_probabilities.h"
#include "session/token_sampler.h"

#include <iterator>
#include <map>
#include <utility>

namespace spac {

namespace {

std::mutex                                    lock; // of what follows
std::map<uint64_t, std::weak_ptr<OwnRequest>> requests;
uint64_t                                      last_number = 0;

thread_local const common_params_sampling * reading = nullptr;

} // namespace

// llama.cpp copies the parameters, and its server takes no notice of the field that has the number.
OwnRequest::OwnRequest(const JoinConfig & config, llama_context * target, uint64_t number)
    : config_(config), target_(target),
      params_(sampling_params(config.sampling, llama_get_model(target), static_cast<int>(llama_n_ctx_seq(target)))) {
    params_.user_sampling_config = number;
}

std::shared_ptr<OwnRequest> OwnRequest::begin(const JoinConfig & config, llama_context * target) {
    const std::lock_guard hold(lock);
    for (auto each = requests.begin(); each != requests.end();) {
        each = each->second.expired() ? requests.erase(each) : std::next(each);
    }
    auto request          = std::make_shared<OwnRequest>(config, target, ++last_number);
    requests[last_number] = request;
    return request;
}

std::shared_ptr<OwnRequest> OwnRequest::of(const common_params_sampling & params) {
    const std::lock_guard hold(lock);
    const auto            found = requests.find(params.user_sampling_config);
    return found == requests.end() ? nullptr : found->second.lock();
}

void OwnRequest::push(SequenceStep step, int first_row) {
    if (config_.n_top >= 0) {
        step.probabilities = token_probabilities(target_, step.tokens, config_.n_top, first_row);
    }
    step.ns    = has_begun_ ? ns_since(last_) : 0;
    has_begun_ = true;
    last_      = Clock::now();
    const std::lock_guard hold(lock_);
    steps_.push_back(std::move(step));
}

std::vector<SequenceStep> OwnRequest::take() {
    const std::lock_guard hold(lock_);
    return std::exchange(steps_, {});
}

void OwnRequest::fail(std::exception_ptr fault) {
    const std::lock_guard hold(lock_);
    fault_ = std::move(fault);
}

void OwnRequest::raise() const {
    const std::lock_guard hold(lock_);
    if (fault_ != nullptr) {
        std::rethrow_exception(fault_);
    }
}

OwnRequest::Reading::Reading(const std::shared_ptr<OwnRequest> & request) {
    reading = request == nullptr ? nullptr : &request->params_;
}

OwnRequest::Reading::~Reading() { reading = nullptr; }

const common_params_sampling * OwnRequest::read() { return reading; }

} // namespace spac
