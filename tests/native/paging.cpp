#include "paging.h"

#include "backend/pager.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace {

constexpr int    n_layer = 6, n_expert = 16, width = 128;
constexpr size_t expert_bytes = size_t{width} * width * sizeof(float), layer_bytes = n_expert * expert_bytes;

float expected(int layer, int expert, int i) { return static_cast<float>(layer * 1000 + expert * 10 + i % 7); }

void fill(float * data, int layer) {
    for (int e = 0; e < n_expert; ++e) {
        for (int i = 0; i < width * width; ++i) {
            data[e * width * width + i] = expected(layer, e, i);
        }
    }
}

// The layers of a model: all in a mapping of a file but the last, which lies in other memory.
struct Layers {
    Layers() : ctx(ggml_init({n_layer * ggml_tensor_overhead(), nullptr, true})), other(layer_bytes / sizeof(float)) {
        char name[] = "/tmp/spac-pager-XXXXXX";
        fd          = mkstemp(name);
        unlink(name);
        std::vector<float> layer(layer_bytes / sizeof(float));
        for (int il = 0; il < n_layer - 1; ++il) {
            fill(layer.data(), il);
            if (pwrite(fd, layer.data(), layer_bytes, static_cast<off_t>(il * layer_bytes)) !=
                static_cast<ssize_t>(layer_bytes)) {
                perror("the pager's file");
                exit(1);
            }
        }
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); // what was written lies in memory in larger pieces than experts
        data = static_cast<char *>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
        madvise(data, bytes, MADV_RANDOM); // nobody but the pager reads ahead
        fill(other.data(), n_layer - 1);
        for (int il = 0; il < n_layer; ++il) {
            ggml_tensor * weight = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, width, width, n_expert);
            weight->data         = il < n_layer - 1 ? data + static_cast<size_t>(il) * layer_bytes
                                                    : reinterpret_cast<char *>(other.data());
            weights.push_back({weight});
        }
    }
    ~Layers() {
        munmap(data, bytes);
        close(fd);
        ggml_free(ctx);
    }

    static constexpr size_t           bytes = (n_layer - 1) * layer_bytes;
    ggml_context *                    ctx;
    std::vector<float>                other;
    int                               fd   = -1;
    char *                            data = nullptr;
    std::vector<spac::Pager::Weights> weights;
};

bool on_disk(int fd) {
    struct statfs system = {};
    return fstatfs(fd, &system) == 0 && system.f_type != TMPFS_MAGIC;
}

// Pages of the file that are in memory.
size_t n_present(const Layers & layers) {
    std::vector<unsigned char> present(Layers::bytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    size_t                     n = 0;
    if (mincore(layers.data, Layers::bytes, present.data()) == 0) {
        for (const unsigned char page : present) {
            n += page & 1U;
        }
    }
    return n;
}

bool right(const Layers & layers, int layer, int expert) {
    const auto * data = static_cast<const float *>(layers.weights[layer].front()->data) + expert * width * width;
    for (int i = 0; i < width * width; i += 61) {
        if (data[i] != expected(layer, expert, i)) {
            return false;
        }
    }
    return true;
}

} // namespace

int check_pager() {
    std::atomic<int> n_wrong{0};
    Layers           layers;
    const size_t     budget = 12 * expert_bytes;
    spac::Pager      pager(budget);
    pager.add_mapping(layers.data, Layers::bytes, layers.fd, 0);
    pager.add_store(layers.data, Layers::bytes);
    auto use = [&](unsigned seed) {
        std::mt19937 random(seed);
        for (int round = 0; round < 400; ++round) {
            const int layer = round % n_layer, first = static_cast<int>(random() % n_expert);
            const int second = (first + 1 + static_cast<int>(random() % (n_expert - 1))) % n_expert;
            if (random() % 3 == 0) {
                pager.foresee((layer + 1) % n_layer, layers.weights[(layer + 1) % n_layer], {first});
            }
            pager.want(layer, layers.weights[layer], {first, second}, random() % 4 != 0);
            n_wrong += right(layers, layer, first) && right(layers, layer, second) ? 0 : 1;
            if (random() % 5 == 0) {
                pager.let_go(layer, first);
            }
        }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 3; ++seed) {
        threads.emplace_back(use, seed);
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    // what was asked for last is not dropped; a few calls later it may be, and then there is as much as there may be
    for (int i = 0; i < 1000 && pager.held() > budget; ++i) {
        pager.want(0, layers.weights[0], {0}, true);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (pager.held() > budget) {
        fprintf(stderr, "the pager holds %zu bytes, of %zu\n", pager.held(), budget);
        ++n_wrong;
    }
    if (on_disk(layers.fd) && n_present(layers) > Layers::bytes / 2 / static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
        fprintf(stderr, "%zu pages of the file are in memory\n", n_present(layers));
        ++n_wrong;
    }
    for (int e = 0; e < n_expert; ++e) {
        n_wrong += right(layers, n_layer - 1, e) ? 0 : 1; // memory that is no file's keeps what it has
    }
    pager.stop();
    pager.want(0, layers.weights[0], {1}, true); // nobody is there to do anything
    if (n_wrong > 0) {
        fprintf(stderr, "the pager: %d faults\n", n_wrong.load());
    }
    return n_wrong;
}
