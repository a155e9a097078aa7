// The products of the target's routers with a draft's states, from the moment when they are computed.
//
// A device's kernels, or the thread that decodes, write the products to host memory. The memory is filled with a mark
// before each token. A layer is known when none of its numbers is the mark. So no signal of the device is needed, and
// a token's graph stays one launch.
//
// The thread that decodes begins and ends tokens. Any other thread may wait for answers: it sleeps between its looks,
// and only while a token is under way.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/router.h"
#include "backend/hidden_states/tap.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace spac {

class Predictions {
  public:
    // A router that is asked. `products` are its numbers in host memory.
    struct Row {
        Question                      question;
        std::shared_ptr<const Router> router;
        Chooser                       chooser;
        int                           n_expert;
        int                           n_used; // by a token
        float *                       products;
    };

    // Sets the rows, none of which is under way. They use `memory`, which is kept.
    void set(std::vector<Row> rows, std::shared_ptr<ggml_backend_buffer> memory);
    // The thread that decodes may read them without a lock.
    const std::vector<Row> & rows() const { return rows_; }

    // Marks all rows: a token is computed from now on.
    void begin();
    // Ends the token, whose rows are no longer written. Returns its answers if `arrived`.
    Answers  end(bool arrived);
    bool     is_under_way() const { return under_way_; }
    uint64_t n_begun() const { return token_; }

    // See Tap.
    Answers next(uint64_t token, int n);
    void    stop();

  private:
    int     n_known(size_t from) const;
    Answers choose(int n) const;

    std::mutex                           mutex_; // guards what follows, but not the numbers in host memory
    std::condition_variable              changed_;
    std::vector<Row>                     rows_;
    std::shared_ptr<ggml_backend_buffer> memory_;
    std::atomic<uint64_t>                token_{0};
    std::atomic<bool>                    under_way_{false};
    bool                                 stopped_ = false;
};

} // namespace spac
