// Runs everything at once on simulated devices, under a sanitizer. Two streams use one model, whose layers are on two
// devices or on one, and a second model runs beside them. Plans change meanwhile, slots are attached anew, large
// batches are streamed, copies are late, and copies fail. Every result must equal the CPU backend's, bit for bit, in
// any interleaving. usage: stress [rounds] [seed]
#include "backend/device/settings.h"
#include "backend/experts/experts.h"
#include "backend/simulated_device/settings.h"
#include "backend/wrapper/device.h"
#include "limits.h"
#include "moe.h"
#include "rpc.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

namespace {

std::atomic<int> n_wrong{0}, n_run{0};

ggml_backend_buffer_type_t store_of(ggml_backend_dev_t device) {
    auto * extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    return *extra(device);
}

// One model: its weights on the device, and the same weights for reference.
struct Model {
    Model(const MoeShape & shape, unsigned seed, std::vector<ggml_backend_dev_t> on)
        : devices(std::move(on)), ours(shape, seed, places(devices)),
          plain(shape, seed, {{ggml_backend_cpu_buffer_type(), ggml_backend_cpu_buffer_type()}}),
          experts(scope.experts()) {}

    static std::vector<MoeWeights::Place> places(const std::vector<ggml_backend_dev_t> & devices) {
        std::vector<MoeWeights::Place> found;
        for (ggml_backend_dev_t device : devices) {
            found.push_back({store_of(device), ggml_backend_dev_buffer_type(device)});
        }
        return found;
    }

    spac::LoadScope                 scope; // the first member, because it must be open while the weights are made
    std::vector<ggml_backend_dev_t> devices;
    MoeWeights                      ours, plain;
    std::shared_ptr<spac::Experts>  experts;
};

// Runs a stream of calls of several sizes and checks every result.
void use(const Model & model, int rounds, unsigned seed) {
    MoeRunner                       ours(model.ours, model.devices), expected(model.plain, {});
    std::mt19937                    random(seed);
    std::normal_distribution<float> normal;
    const int                       sizes[] = {1, 1, 5, 1, 9, 2, 40};
    for (int round = 0; round < rounds; ++round) {
        std::vector<float> input(static_cast<size_t>(model.ours.shape.width) * static_cast<size_t>(sizes[round % 7]));
        for (float & value : input) {
            value = normal(random);
        }
        const auto got = ours.run(input);
        ++n_run;
        if (got != expected.run(input)) {
            ++n_wrong;
            fprintf(stderr, "wrong result: seed %u, round %d, %d tokens\n", seed, round, sizes[round % 7]);
        }
    }
}

std::atomic<uint64_t> n_spans{0}, n_reported{0}; // recorded spans, and calls of a layer listener

// Changes plans, slots, faults and listeners without a pause, and reads the statistics.
void disturb(spac::Experts & experts, const std::atomic<bool> & done, unsigned seed) {
    std::mt19937 random(seed);
    const auto   n_layer = static_cast<size_t>(experts.n_layer()), n_expert = static_cast<size_t>(experts.n_expert());
    std::vector<int32_t> priority(n_layer * n_expert), threshold(n_layer), demand(n_layer * n_expert),
        slots(n_layer * n_expert);
    std::vector<spac::LayerCost> costs(n_layer);
    while (!done) {
        for (int32_t & p : priority) {
            p = static_cast<int32_t>(random() % 5);
        }
        for (int32_t & t : threshold) {
            t = static_cast<int32_t>(1 + random() % 4);
        }
        experts.submit(priority.data(), threshold.data());
        experts.take_demand(demand.data());
        experts.residency(slots.data());
        switch (random() % 16) {
        case 0:
            experts.attach_slots(static_cast<int>(random() % (n_layer * n_expert + 1)), {});
            break;
        case 1: {
            spac::SimulatedSettings faults;
            faults.delay_us     = 20;
            faults.fail_uploads = static_cast<int>(random() % 4);
            spac::set_simulated_device(faults, static_cast<int>(random() % 2));
            break;
        }
        case 2:
            experts.settle(0.01);
            break;
        case 3:
            experts.set_stream_tokens(random() % 2 != 0 ? 9 : 0);
            break;
        case 4:
            experts.take_layer_costs(costs.data());
            n_spans += experts.trace()->take().size();
            experts.trace()->start(random() % 1000);
            break;
        case 5:
            experts.set_layer_listener([](int, const std::vector<int32_t> &) { ++n_reported; });
            break;
        case 6:
            experts.set_layer_listener(nullptr);
            experts.trace()->stop();
            break;
        case 7:
            experts.set_lookahead(static_cast<int>(random() % 3));
            break;
        default:
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        }
    }
}

// Returns true if both sides computed, experts came and went, prompts were streamed, and events were seen.
bool has_met_all(const spac::Experts & experts) {
    const spac::ExpertStats stats = experts.stats();
    return stats.uploads > 0 && stats.blocks_streamed > 0 && stats.activations_hit > 0 &&
           stats.activations_hit < stats.activations && stats.foreseen > 0 && n_spans > 0 && n_reported > 0;
}

void stress(int rounds, unsigned seed, bool masked, bool on_two) {
    spac::set_trust_device_masks(masked);
    auto *   device = static_cast<ggml_backend_dev_t>(spac::device_handle("simulated"));
    auto *   second = static_cast<ggml_backend_dev_t>(spac::device_handle("simulated1"));
    MoeShape small, other;
    other.n_layer = 2, other.n_expert = 5, other.n_used = 3, other.biases = true, other.type = GGML_TYPE_F32;
    Model a(small, seed, on_two ? std::vector{device, second} : std::vector{device});
    Model b(other, seed + 1, {second});
    use(a, 1, seed); // this makes the layers known
    use(b, 1, seed);
    a.experts->set_step_tokens(8); // larger batches are prompts
    b.experts->set_step_tokens(8);
    a.experts->set_lookahead(1);
    a.experts->attach_slots(9, {});
    b.experts->attach_slots(4, {});

    std::atomic<bool>        done{false};
    std::vector<std::thread> policies, streams;
    policies.emplace_back([&] { disturb(*a.experts, done, seed + 2); });
    policies.emplace_back([&] { disturb(*b.experts, done, seed + 3); });
    streams.emplace_back([&] { use(a, rounds, seed + 4); });
    streams.emplace_back([&] { use(a, rounds, seed + 5); });
    streams.emplace_back([&] { use(b, rounds, seed + 6); });
    for (std::thread & thread : streams) {
        thread.join();
    }
    // The interleaving is random. On a slow machine, slots may have changed before any step read them.
    for (unsigned more = 0; !has_met_all(*a.experts) && more < 50; ++more) {
        use(a, rounds, seed + 7 + more);
    }
    done = true;
    for (std::thread & thread : policies) {
        thread.join();
    }
    const spac::ExpertStats stats = a.experts->stats();
    printf("%-8s seed %u: %llu uploads, %llu failed, %llu evictions, %llu of %llu activations on the device\n",
           masked ? "masked" : "compact", seed, static_cast<unsigned long long>(stats.uploads),
           static_cast<unsigned long long>(stats.upload_failures), static_cast<unsigned long long>(stats.evictions),
           static_cast<unsigned long long>(stats.activations_hit), static_cast<unsigned long long>(stats.activations));
    if (!has_met_all(*a.experts)) {
        fprintf(stderr,
                "nothing was tested: no uploads, nothing streamed, one side did all the work, or nobody saw it\n");
        ++n_wrong;
    }
}

} // namespace

int main(int argc, char ** argv) {
    const int      rounds = argc > 1 ? atoi(argv[1]) : 15;
    const unsigned seed   = argc > 2 ? static_cast<unsigned>(atoi(argv[2])) : 1;
    n_wrong += check_slot_limits();
    n_wrong += check_rpc();
    spac::set_simulated_device({}, 1); // makes a second device
    spac::set_launch_ahead(true);
    stress(rounds, seed, true, true);
    spac::set_launch_ahead(false);
    stress(rounds, seed + 50, true, false);
    stress(rounds, seed + 100, false, true);
    printf("%d results, %d wrong\n", n_run.load(), n_wrong.load());
    return n_wrong == 0 ? 0 : 1;
}
