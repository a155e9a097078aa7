#include "backend/hidden_states/stream_tap.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace spac {
namespace {

// A NaN that no product is: arithmetic gives another one.
constexpr uint32_t mark = 0x7fc5bac5;

// The time between two looks at a token that is computed. An expert's copy takes several times as long.
constexpr std::chrono::microseconds between_looks{50};

uint32_t * bits(float * numbers) { return reinterpret_cast<uint32_t *>(numbers); }

bool is_known(const Predictions::Row & row) {
    const uint32_t * numbers = bits(row.products);
    // The last number is looked at first, since most kernels write in order.
    for (int e = row.n_expert; e-- > 0;) {
        if (__atomic_load_n(numbers + e, __ATOMIC_ACQUIRE) == mark) {
            return false;
        }
    }
    return true;
}

} // namespace

void Predictions::set(std::vector<Row> rows, std::shared_ptr<ggml_backend_buffer> memory) {
    const std::lock_guard lock(mutex_);
    rows_      = std::move(rows);
    memory_    = std::move(memory);
    under_way_ = stopped_ = false;
}

void Predictions::begin() {
    {
        const std::lock_guard lock(mutex_);
        for (const Row & row : rows_) {
            for (int e = 0; e < row.n_expert; ++e) {
                __atomic_store_n(bits(row.products) + e, mark, __ATOMIC_RELEASE);
            }
        }
        ++token_;
        under_way_ = true;
    }
    changed_.notify_all();
}

Answers Predictions::end(bool arrived) {
    const std::lock_guard lock(mutex_);
    const bool            was_under_way = under_way_.exchange(false);
    const int             n             = static_cast<int>(rows_.size());
    return was_under_way && arrived && n_known(0) == n ? choose(n) : Answers{};
}

Answers Predictions::next(uint64_t token, int n) {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
        const int before = token == token_ ? n : 0;
        const int now    = under_way_ ? n_known(static_cast<size_t>(before)) : before;
        if (now > before) {
            return choose(now);
        }
        if (under_way_ && now < static_cast<int>(rows_.size())) {
            changed_.wait_for(lock, between_looks);
        } else {
            changed_.wait(lock);
        }
    }
    return {};
}

void Predictions::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
}

// Returns the number of layers that are known, the first `from` of which were known before.
int Predictions::n_known(size_t from) const {
    const auto first = rows_.begin() + static_cast<std::ptrdiff_t>(std::min(from, rows_.size()));
    return static_cast<int>(std::find_if_not(first, rows_.end(), is_known) - rows_.begin());
}

Answers Predictions::choose(int n) const {
    Answers found;
    found.token = token_;
    found.n     = n;
    for (const Row & row : rows_) {
        found.width = std::max(found.width, row.question.n_chosen);
    }
    found.ids.assign(static_cast<size_t>(n) * found.width, -1);
    std::vector<float> products;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const Row & row = rows_[i];
        products.assign(row.products, row.products + row.n_expert);
        row.chooser.choose(products.data(), row.n_expert, row.question.n_chosen, found.ids.data() + i * found.width);
    }
    return found;
}

} // namespace spac
