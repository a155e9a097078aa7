// Allocation, registration, copies.
#include "memory.h"
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

using namespace pretend;

namespace {

cudaError_t free_range(void * p, Range::Where where, Kind kind) {
    if (p == nullptr) {
        return cudaSuccess;
    }
    if (under_capture()) {
        misuse("memory is freed while a stream is under capture");
    }
    // A card waits for all work that it has queued before it frees memory. Pinned memory is every card's.
    const RangePtr known = find(p);
    synchronize_card(known && known->where == Range::Where::device ? known->card : all_cards);
    count(kind);
    const RangePtr range = take(p, where);
    if (range == nullptr) {
        misuse("freed: memory that was not allocated so, or not any more");
        return fail(cudaErrorInvalidValue);
    }
    release(range);
    return cudaSuccess;
}

// ---- copies

// One side of a copy, as the card sees it.
struct Side {
    RangePtr range;
    char *   bytes;
};

// Finds a side, and checks that a stream of the card may copy or fill it. A stream reaches the memory of its own card,
// and host memory.
bool resolve(const void * p, size_t n, bool on_device, const char * role, int card, Side & side) {
    side.range = find(p);
    side.bytes = const_cast<char *>(static_cast<const char *>(p));
    if (side.range == nullptr) {
        const bool partly = runs_into_range(p, n);
        if (on_device || partly) {
            misuse(on_device ? "a copy's %s is not device memory" : "a part of a copy's %s is pinned memory", role);
        }
        return !on_device && !partly;
    }
    if ((side.range->where == Range::Where::device) != on_device) {
        misuse("a copy's %s is on the other side than its kind says", role);
        return false;
    }
    if (!side.range->holds(p, n)) {
        misuse("a copy of %zu bytes goes past the end of its %s, which has %zu from there", n, role,
               side.range->size - static_cast<size_t>(side.bytes - side.range->base));
        return false;
    }
    if (on_device && card != all_cards && card != side.range->card) {
        misuse("a stream of card %d copies or fills memory of card %d", card, side.range->card);
        return false;
    }
    side.bytes = side.range->at(p);
    return true;
}

int64_t copy_ns(size_t bytes, bool over_link) {
    const double ns = settings().gb_s > 0 && over_link ? static_cast<double>(bytes) / settings().gb_s : 0;
    return static_cast<int64_t>(ns + settings().copy_us * 1000);
}

// Rows of logits get a peak, because zeros would make all tokens equally likely.
void make_logits(char * to, size_t bytes) {
    static std::atomic<uint64_t> n_rows{0};
    const size_t                 row = settings().vocabulary * sizeof(float);
    if (row == 0 || bytes == 0 || bytes % row != 0) {
        return;
    }
    for (size_t at = 0; at < bytes; at += row) {
        const uint64_t drawn                                              = mix(++n_rows);
        const bool     agrees                                             = drawn % 10 != 0;
        const size_t   token                                              = 65 + (agrees ? 0 : 1 + (drawn >> 8 & 15));
        reinterpret_cast<float *>(to + at)[token % settings().vocabulary] = 30;
    }
}

struct Rows {
    size_t width, height, to_pitch, from_pitch;
};

size_t span(size_t pitch, const Rows & r) { return r.height == 0 ? 0 : (r.height - 1) * pitch + r.width; }

cudaError_t copy(void * to, const void * from, const Rows & r, cudaMemcpyKind kind, cudaStream_t handle,
                 bool between_cards = false) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    const bool to_device   = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    Side       target, source;
    if (r.width * r.height == 0) {
        return cudaSuccess;
    }
    const int card = between_cards ? all_cards : stream->card;
    if (!resolve(to, span(r.to_pitch, r), to_device, "target", card, target) ||
        !resolve(from, span(r.from_pitch, r), from_device, "source", card, source)) {
        return fail(cudaErrorInvalidValue);
    }
    if (target.range != nullptr && target.range->read_only) {
        misuse("a copy writes memory that is registered as read-only");
        return fail(cudaErrorInvalidValue);
    }
    const size_t bytes = r.width * r.height;
    Operation    op    = {Kind::copy_on_device};
    op.cost_ns         = copy_ns(bytes, to_device != from_device);
    count(from_device ? (to_device ? Kind::copy_on_device : Kind::copy_to_host) : Kind::copy_to_device, stream->number);
    for (const Side & side : {target, source}) {
        if (side.range != nullptr) {
            op.touches.push_back(side.range);
        } else {
            count(side.bytes == to ? Kind::pageable_to_host : Kind::pageable_to_device, stream->number);
        }
    }
    if (op.touches.size() < 2 && stream->capture != nullptr) {
        misuse("a copy of pageable memory is captured");
    }
    std::shared_ptr<std::vector<char>> staged;
    if (source.range == nullptr) { // pageable memory is read before the call returns
        staged = std::make_shared<std::vector<char>>(source.bytes, source.bytes + span(r.from_pitch, r));
    }
    op.run = [a = target.bytes, b = staged ? staged->data() : source.bytes, r, staged, logits = !to_device] {
        for (size_t i = 0; i < r.height; ++i) {
            std::memcpy(a + i * r.to_pitch, b + i * r.from_pitch, r.width);
        }
        if (logits && r.height == 1) {
            make_logits(a, r.width);
        }
    };
    stream->push(std::move(op));
    constexpr size_t staged_at_once = size_t{64} << 10; // the size of a driver's own pinned memory
    if (target.range == nullptr || (source.range == nullptr && bytes > staged_at_once)) {
        stream->synchronize();
    }
    return cudaSuccess;
}

} // namespace

PRETEND_API cudaError_t cudaMalloc(void ** p, size_t bytes) {
    wait_implicitly(true);
    count(Kind::device_alloc);
    *p = device_alloc(current_card(), bytes);
    return *p != nullptr || bytes == 0 ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

PRETEND_API cudaError_t cudaMallocManaged(void ** p, size_t bytes, unsigned int) { return cudaMalloc(p, bytes); }

PRETEND_API cudaError_t cudaFree(void * p) { return free_range(p, Range::Where::device, Kind::device_free); }

PRETEND_API cudaError_t cudaMallocHost(void ** p, size_t bytes) {
    wait_implicitly(true);
    *p = pinned_alloc(bytes);
    count(Kind::host_alloc);
    return *p != nullptr ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

PRETEND_API cudaError_t cudaHostAlloc(void ** p, size_t bytes, unsigned int) { return cudaMallocHost(p, bytes); }

PRETEND_API cudaError_t cudaFreeHost(void * p) { return free_range(p, Range::Where::pinned, Kind::host_free); }

PRETEND_API cudaError_t cudaHostGetDevicePointer(void ** device, void * host, unsigned int) {
    const RangePtr range = find(host);
    if (range == nullptr || range->where == Range::Where::device) {
        misuse("a device pointer is asked for of memory that is not pinned");
        return fail(cudaErrorInvalidValue);
    }
    *device = host;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaHostRegister(void * p, size_t bytes, unsigned int flags) {
    const bool read_only = (flags & cudaHostRegisterReadOnly) != 0;
    count(Kind::host_register);
    if (!settings().registers || (read_only && !settings().read_only)) {
        return fail(cudaErrorNotSupported);
    }
    bool refused = false;
    if (add_registered(p, bytes, read_only, refused) == nullptr) {
        return fail(refused ? cudaErrorMemoryAllocation : cudaErrorHostMemoryAlreadyRegistered);
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaHostUnregister(void * p) {
    const RangePtr known = find(p);
    count(Kind::host_unregister);
    if (known != nullptr && known->in_use > 0) {
        misuse("host memory is unregistered while %d queued operations use it", known->in_use.load());
    }
    synchronize_card(all_cards);
    const RangePtr range = take(p, Range::Where::registered);
    if (range == nullptr) {
        return fail(cudaErrorHostMemoryNotRegistered);
    }
    const auto                 page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> resident(range->size / page + 2);
    if (mincore(range->base, range->size, resident.data()) != 0) {
        misuse("host memory was unmapped while it was registered");
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemcpyAsync(void * to, const void * from, size_t bytes, cudaMemcpyKind kind,
                                        cudaStream_t stream) {
    return copy(to, from, {bytes, 1, bytes, bytes}, kind, stream);
}

PRETEND_API cudaError_t cudaMemcpy2DAsync(void * to, size_t to_pitch, const void * from, size_t from_pitch,
                                          size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, {width, height, to_pitch, from_pitch}, kind, stream);
}

PRETEND_API cudaError_t cudaMemcpyPeerAsync(void * to, int to_card, const void * from, int from_card, size_t bytes,
                                            cudaStream_t stream) {
    const RangePtr target = find(to), source = find(from);
    if ((target != nullptr && target->card != to_card) || (source != nullptr && source->card != from_card)) {
        misuse("a copy from card %d to card %d names memory of another one", from_card, to_card);
        return fail(cudaErrorInvalidValue);
    }
    return copy(to, from, {bytes, 1, bytes, bytes}, cudaMemcpyDeviceToDevice, stream, true);
}

PRETEND_API cudaError_t cudaMemsetAsync(void * to, int value, size_t bytes, cudaStream_t handle) {
    const StreamPtr stream = stream_of(handle);
    Side            target;
    if (stream == nullptr || !resolve(to, bytes, true, "target", stream->card, target)) {
        return fail(cudaErrorInvalidValue);
    }
    count(Kind::fill, stream->number);
    const auto run = [p = target.bytes, value, bytes] { std::memset(p, value, bytes); };
    stream->push({Kind::fill, run, nullptr, {target.range}});
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemset(void * to, int value, size_t bytes) {
    const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
    stream_of(nullptr)->synchronize();
    return error;
}
