#include "session/route_log.h"

#include <algorithm>

namespace spac {

RouteLog::Counting::Counting(Experts * experts) : experts_(experts) {
    if (experts_ != nullptr) {
        experts_->set_counting(true);
    }
}

RouteLog::Counting::~Counting() {
    if (experts_ != nullptr) {
        experts_->set_counting(false);
    }
}

RouteLog::RouteLog(std::shared_ptr<Experts> experts) : experts_(std::move(experts)) {
    if (experts_) {
        experts_->set_counting(false);
    }
}

void RouteLog::keep(bool keeps) {
    keeps_  = keeps && experts_ != nullptr;
    routes_ = {};
    if (keeps_) { // what was counted before does not belong to the next evaluation
        demand_.resize(static_cast<size_t>(experts_->n_layer()) * static_cast<size_t>(experts_->n_expert()));
        experts_->take_demand(demand_.data());
        routes_.n_layer = experts_->n_layer();
    }
}

void RouteLog::trim(int n) {
    if (routes_.n_tokens > n) {
        routes_.n_tokens = n;
        routes_.ids.resize(static_cast<size_t>(n) * routes_.n_layer * routes_.n_used);
    }
}

void RouteLog::append() {
    if (!keeps_) {
        return;
    }
    if (experts_->take_demand(demand_.data()) != 1) {
        return; // the evaluation failed, and the demand is an earlier token's
    }
    const auto [n_tokens, n_used] = experts_->routes(ids_);
    routes_.n_used                = routes_.n_tokens == 0 ? n_used : routes_.n_used;
    SPAC_CHECK(n_tokens == 1 && n_used == routes_.n_used, n_tokens, n_used, routes_.n_used);
    routes_.ids.insert(routes_.ids.end(), ids_.begin(), ids_.end());
    ++routes_.n_tokens;
}

} // namespace spac
