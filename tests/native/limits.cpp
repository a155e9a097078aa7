#include "limits.h"

#include "backend/experts/model_experts.h"
#include "backend/simulated_device/settings.h"
#include "backend/simulated_device/simulated_device.h"
#include "core/error.h"

#include <cstdio>
#include <cstring>

namespace {

int n_failed = 0;

void check(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "slot limits: %s\n", what);
        ++n_failed;
    }
}

// Layers of BF16 experts of 7168 x 2048. One tensor can stack at most 146 of them.
class Layers {
  public:
    explicit Layers(const std::vector<int> & n_experts) : experts(std::make_shared<spac::ModelExperts>()) {
        ctx_.reset(ggml_init({2 * n_experts.size() * ggml_tensor_overhead(), nullptr, true}));
        experts->set_device(spac::simulated_device(), spac::ModelExperts::HostMemory::pageable);
        for (const int n : n_experts) {
            const auto weight = [&](int64_t in, int64_t out) {
                return ggml_new_tensor_3d(ctx_.get(), GGML_TYPE_BF16, in, out, n);
            };
            experts->find_or_add_layer({weight(7168, 2048), weight(2048, 7168)}, 8);
        }
    }
    std::vector<int> pools() const {
        std::vector<int> pools;
        for (int il = 0; il < experts->n_layer(); ++il) {
            pools.push_back(experts->pool_of(il));
        }
        return pools;
    }
    std::shared_ptr<spac::ModelExperts> experts;

  private:
    ggml_context_ptr ctx_;
};

} // namespace

int check_slot_limits() {
    n_failed          = 0;
    const auto before = spac::simulated_settings();
    auto       large  = before;
    large.memory_mb   = 1L << 30;
    spac::set_simulated_device(large);
    {
        const Layers two_fit({73, 73, 73, 73, 73});
        check(two_fit.pools() == std::vector<int>{0, 0, 1, 1, 2}, "layers share a pool as far as it can be addressed");
        check(two_fit.experts->slots_that_fit({}) == 5 * 73, "then all experts can have slots");
    }
    {
        const Layers too_many({256, 256});
        check(too_many.pools() == std::vector<int>{0, 1}, "a layer beyond the limit has a pool of its own");
        check(too_many.experts->slots_that_fit({}) == 2 * 146, "no more slots fit than can be addressed");
        try {
            too_many.experts->attach_slots(400, {});
            check(false, "more slots are refused");
        } catch (const spac::InputError & error) {
            check(strstr(error.what(), "can address 146 of this size: give 292 slots at most") != nullptr,
                  error.what());
        }
    }
    spac::set_simulated_device(before);
    return n_failed;
}
