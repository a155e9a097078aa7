#include "reading.h"

#include "backend/read_ahead.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
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
        char name[] = "/tmp/spac-reading-XXXXXX";
        fd          = mkstemp(name);
        unlink(name);
        std::vector<float> layer(layer_bytes / sizeof(float));
        for (size_t il = 0; il < n_layer - 1; ++il) {
            fill(layer.data(), static_cast<int>(il));
            if (pwrite(fd, layer.data(), layer_bytes, static_cast<off_t>(il * layer_bytes)) !=
                static_cast<ssize_t>(layer_bytes)) {
                perror("a file of experts");
                exit(1);
            }
        }
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        data = static_cast<char *>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
        madvise(data, bytes, MADV_RANDOM); // the system reads nothing by itself
        fill(other.data(), n_layer - 1);
        for (size_t il = 0; il < n_layer; ++il) {
            ggml_tensor * weight = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, width, width, n_expert);
            weight->data         = il < n_layer - 1 ? data + il * layer_bytes : reinterpret_cast<char *>(other.data());
            weights.push_back({weight});
        }
    }
    ~Layers() {
        munmap(data, bytes);
        close(fd);
        ggml_free(ctx);
    }

    // Whether an expert is in memory as a whole.
    bool present(size_t layer, size_t expert) const {
        std::vector<unsigned char> pages(expert_bytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
        mincore(data + layer * layer_bytes + expert * expert_bytes, expert_bytes, pages.data());
        size_t n = 0;
        for (const unsigned char page : pages) {
            n += page & 1U;
        }
        return n == pages.size();
    }
    bool right(int layer, int expert) const {
        const auto * values = static_cast<const float *>(weights[layer].front()->data) + expert * width * width;
        for (int i = 0; i < width * width; i += 61) {
            if (values[i] != expected(layer, expert, i)) {
                return false;
            }
        }
        return true;
    }

    static constexpr size_t               bytes = (n_layer - 1) * layer_bytes;
    ggml_context *                        ctx;
    std::vector<float>                    other;
    int                                   fd   = -1;
    char *                                data = nullptr;
    std::vector<spac::ReadAhead::Weights> weights;
};

bool on_disk(int fd) {
    struct statfs system = {};
    return fstatfs(fd, &system) == 0 && system.f_type != TMPFS_MAGIC;
}

int check(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "reading ahead: %s\n", what);
    }
    return ok ? 0 : 1;
}

bool soon(const std::function<bool()> & is_so) {
    for (int i = 0; i < 2000 && !is_so(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return is_so();
}

// What is asked for is read, and nothing else.
int check_what_is_read(const Layers & layers, spac::ReadAhead & ahead) {
    if (!on_disk(layers.fd)) {
        return 0; // all of it is in memory
    }
    int n_wrong = check(!layers.present(1, 3) && !layers.present(2, 5), "the file is not cold");
    ahead.want(layers.weights[1], {3, 4});
    ahead.foresee(layers.weights[2], {5});
    n_wrong += check(soon([&] { return layers.present(1, 3) && layers.present(1, 4); }), "not what is wanted");
    n_wrong += check(soon([&] { return layers.present(2, 5); }), "not what is foreseen");
    return n_wrong + check(!layers.present(1, 8) && !layers.present(3, 5), "more than was asked for");
}

} // namespace

int check_read_ahead() {
    Layers           layers;
    spac::ReadAhead  ahead;
    std::atomic<int> n_wrong{check_what_is_read(layers, ahead)};
    const auto       use = [&](unsigned seed) {
        std::mt19937 random(seed);
        for (int round = 0; round < 400; ++round) {
            const int layer = round % n_layer, next = (layer + 1) % n_layer;
            const int first  = static_cast<int>(random() % n_expert);
            const int second = (first + 1 + static_cast<int>(random() % (n_expert - 1))) % n_expert;
            ahead.foresee(layers.weights[next], {first});
            ahead.want(layers.weights[layer], {first, second});
            n_wrong += layers.right(layer, first) && layers.right(layer, second) ? 0 : 1;
            ahead.let_go(layers.weights[layer], first);
        }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 3; ++seed) {
        threads.emplace_back(use, seed);
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    for (int e = 0; e < n_expert; ++e) {
        n_wrong += layers.right(n_layer - 1, e) ? 0 : 1;
    }
    std::thread other([&] { ahead.stop(); });
    ahead.stop();
    other.join();
    ahead.want(layers.weights[0], {1}); // nobody is there to do anything
    return check(n_wrong == 0, "there were faults") + n_wrong;
}
