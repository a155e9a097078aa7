// A stream gate for CUDA, made of stream memory operations, and a wait for events. The device writes a word in pinned
// host memory, and waits until another word has reached a value. No kernel runs during the wait, so a graphics card's
// watchdog does not stop it.
#if defined(SPAC_WITH_CUDA)

#include "backend/device/ggml_internals.h"
#include "backend/device/stream_gate.h"
#include "core/error.h"
#include "ggml-cuda.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <sys/prctl.h>

void * ggml_backend_cuda_stream(ggml_backend_t backend); // patches/0003-cuda-stream.patch

namespace spac {
namespace {

using Clock = std::chrono::steady_clock;

// Functions of CUDA's driver that spac uses and ggml-cuda does not offer: stream memory operations, and queries of
// streams and events. They are looked up in the driver that ggml-cuda has loaded, so this code needs no CUDA compiler.
struct CudaDriver {
    // Values of cuda.h.
    static constexpr int success = 0, out_of_memory = 2, no_context = 201, not_ready = 600;

    using ValueOp = int (*)(void * stream, unsigned long long address, uint32_t value, unsigned flags);

    // Each pointer is null if the driver lacks the function.
    ValueOp wait_value                                    = nullptr;
    ValueOp write_value                                   = nullptr;
    int (*query_stream)(void * stream)                    = nullptr;
    int (*query_event)(void * event)                      = nullptr;
    int (*get_context)(void ** context)                   = nullptr; // gets the calling thread's
    int (*set_context)(void * context)                    = nullptr;
    int (*stream_context)(void * stream, void ** context) = nullptr;
    int (*error_name)(int error, const char ** name)      = nullptr;

    // Returns the loaded driver. It is looked up once, so the first call has to come after a call of ggml-cuda.
    static const CudaDriver & loaded();
    // Throws DeviceError with the error's name, unless the status is `success`. It needs error_name.
    void check(int status) const;

  private:
    CudaDriver();
};

template <typename Function> void find(void * library, const char * name, Function & function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
}

CudaDriver::CudaDriver() {
    void * library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); // ggml-cuda has loaded it
    if (library != nullptr) {
        find(library, "cuStreamWaitValue32_v2", wait_value);
        find(library, "cuStreamWriteValue32_v2", write_value);
        find(library, "cuStreamQuery", query_stream);
        find(library, "cuEventQuery", query_event);
        find(library, "cuCtxGetCurrent", get_context);
        find(library, "cuCtxSetCurrent", set_context);
        find(library, "cuStreamGetCtx", stream_context);
        find(library, "cuGetErrorName", error_name);
    }
}

const CudaDriver & CudaDriver::loaded() {
    static const CudaDriver known;
    return known;
}

void CudaDriver::check(int status) const {
    if (status != success) {
        const char * name = nullptr;
        error_name(status, &name);
        throw DeviceError(std::string("the GPU failed: ") + (name != nullptr ? name : std::to_string(status)));
    }
}

// Flags of CUDA's driver (cuda.h).
constexpr unsigned wait_until_reached = 0; // CU_STREAM_WAIT_VALUE_GEQ: compares cyclically, so numbers may wrap around
constexpr unsigned write_ordered      = 0; // CU_STREAM_WRITE_VALUE_DEFAULT: writes after the stream's earlier writes

const CudaDriver & driver() { return CudaDriver::loaded(); }

bool has_gates(const CudaDriver & driver) {
    return driver.wait_value != nullptr && driver.write_value != nullptr && driver.query_stream != nullptr &&
           driver.get_context != nullptr && driver.set_context != nullptr && driver.stream_context != nullptr &&
           driver.error_name != nullptr;
}

// A watch that queries the device's failures every 100 ms while ask() is called.
//
// It queries on its own thread. A driver may block every call while another thread's call waits for the device, and
// the device waits for the thread that would have asked. It queries its own stream, since a query of a stream under
// capture would spoil the capture, and any call reports a failure.
class Watch {
  public:
    explicit Watch(void * context) : context_(context) {}
    ~Watch() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
            changed_.notify_all();
        }
        if (thread_.joinable()) {
            thread_.join();
        }
    }

    // Returns the device's last known error, or `success`.
    int ask() {
        const std::lock_guard lock(mutex_);
        asked_ = true;
        if (!thread_.joinable()) {
            thread_ = std::thread([this] { work(); });
        }
        changed_.notify_all();
        return status_;
    }

  private:
    void work() {
        driver().set_context(context_);
        std::unique_lock lock(mutex_);
        while (!stop_) {
            changed_.wait(lock, [&] { return stop_ || asked_; });
            asked_ = false;
            lock.unlock();
            const int status = driver().query_stream(per_thread_stream());
            lock.lock();
            status_ = tells_nothing(status) ? CudaDriver::success : status;
            changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop_; });
        }
    }

    // The query makes the thread's stream at first. A full card may have no memory for it, and works.
    static bool tells_nothing(int status) {
        return status == CudaDriver::not_ready || status == CudaDriver::no_context ||
               status == CudaDriver::out_of_memory;
    }
    static void * per_thread_stream() { return reinterpret_cast<void *>(uintptr_t{2}); } // CU_STREAM_PER_THREAD

    void *                  context_;
    std::mutex              mutex_;
    std::condition_variable changed_;
    bool                    asked_ = false, stop_ = false;
    int                     status_ = CudaDriver::success;
    std::thread             thread_; // starts with the first ask()
};

class CudaGate : public Gate {
  public:
    CudaGate(ggml_backend_t backend, ggml_backend_buffer_ptr words)
        : stream_(ggml_backend_cuda_stream(backend)), context_(context_of(stream_)), words_(std::move(words)),
          word_(static_cast<std::atomic<uint32_t> *>(ggml_backend_buffer_get_base(words_.get()))), watch_(context_) {
        word_[signal_at] = word_[open_at] = 0;
    }

    void queue_signal(uint64_t n) override {
        make_current();
        driver().check(driver().write_value(stream_, address(signal_at), low(n), write_ordered));
    }
    void queue_wait(uint64_t n) override {
        make_current();
        driver().check(driver().wait_value(stream_, address(open_at), low(n), wait_until_reached));
    }
    void open(uint64_t n) override { word_[open_at].store(low(n), std::memory_order_release); }

    uint32_t signalled() const override { return word_[signal_at].load(std::memory_order_acquire); }
    uint32_t opened() const override { return word_[open_at].load(std::memory_order_acquire); }

    // Polls without sleep for the first millisecond, since the device's part between two layers takes some tens of
    // microseconds. It yields, so that the thread that launches goes first where cores are scarce.
    void await_signal(uint64_t n) override {
        const auto start = Clock::now();
        for (Patience patience; !reached(n);) {
            for (int i = 0; i < 256 && !reached(n); ++i) {
                pause();
            }
            std::this_thread::yield();
            const auto waited = Clock::now() - start;
            if (waited > std::chrono::milliseconds(100)) {
                driver().check(watch_.ask()); // the device may have failed instead of signalling
                if (patience.over() && !reached(n)) {
                    throw Overdue("the GPU did not signal");
                }
            }
            if (waited > std::chrono::milliseconds(1)) {
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
        }
    }

    // Returns true if the stream signals and waits within a second. Otherwise the words stay for good, since the stream
    // may still read and write them.
    bool works() {
        if (answers()) {
            return true;
        }
        words_.release(); // NOLINT(bugprone-unused-return-value)
        return false;
    }

  private:
    bool answers() {
        make_current();
        if (driver().write_value(stream_, address(signal_at), 1, write_ordered) != CudaDriver::success) {
            return false;
        }
        open(1);
        const bool queued =
            driver().wait_value(stream_, address(open_at), 1, wait_until_reached) == CudaDriver::success &&
            driver().write_value(stream_, address(signal_at), 2, write_ordered) == CudaDriver::success;
        for (const auto end = Clock::now() + std::chrono::seconds(1); queued && Clock::now() < end;) {
            if (reached(2)) {
                word_[signal_at] = word_[open_at] = 0;
                return true;
            }
        }
        return false;
    }

    static constexpr int signal_at = 0, open_at = 64; // each word has its own cache line

    static void * context_of(void * stream) {
        void * context = nullptr;
        driver().check(driver().stream_context(stream, &context));
        return context;
    }
    // Makes the stream's context the calling thread's, as the driver wants it for memory operations. With several
    // cards, the thread may have come from another one.
    void make_current() const {
        void * now = nullptr;
        driver().check(driver().get_context(&now));
        if (now != context_) {
            driver().check(driver().set_context(context_));
        }
    }

    static uint32_t low(uint64_t n) { return static_cast<uint32_t>(n); }
    static void     pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    bool reached(uint64_t n) const { return static_cast<int32_t>(signalled() - low(n)) >= 0; }
    // Returns a word's address on the device. Pinned memory has one address for host and device.
    unsigned long long address(int word) const { return reinterpret_cast<uintptr_t>(&word_[word]); }

    void *                  stream_;
    void *                  context_;
    ggml_backend_buffer_ptr words_;
    std::atomic<uint32_t> * word_;
    Watch                   watch_;
};

} // namespace

// It sleeps between queries. Linux adds some 50 µs to a short sleep unless it is told not to, and the copy of an expert
// takes as long: published later, and believed to be slower than it is.
//
// The driver needs a context on the calling thread. The runtime made it current when this thread recorded the event.
bool cuda_await(ggml_backend_t stream, ggml_backend_event_t event) {
    const CudaDriver & driver = CudaDriver::loaded();
    if (!ggml_backend_is_cuda(stream) || driver.query_event == nullptr) {
        return false;
    }
    thread_local const int precise [[maybe_unused]] = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); // in ns
    int                    status                   = driver.query_event(event->context);
    while (status == CudaDriver::not_ready) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        status = driver.query_event(event->context);
    }
    return status == CudaDriver::success;
}

namespace {

std::unique_ptr<Gate> working_gate(ggml_backend_t backend) {
    if (!has_gates(driver())) {
        return nullptr;
    }
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(backend));
    ggml_backend_buffer_ptr    words(pinned != nullptr ? ggml_backend_buft_alloc_buffer(pinned, 512) : nullptr);
    // if pinning fails, ggml returns plain memory
    if (!words || ggml_backend_buffer_get_type(words.get()) != pinned) {
        return nullptr;
    }
    auto gate = std::make_unique<CudaGate>(backend, std::move(words));
    return gate->works() ? std::move(gate) : nullptr;
}

} // namespace

std::unique_ptr<Gate> cuda_gate(ggml_backend_t backend) {
    if (!ggml_backend_is_cuda(backend)) {
        return nullptr;
    }
    auto                     gate = working_gate(backend);
    static std::atomic<bool> said{false};
    if (gate == nullptr && !said.exchange(true)) {
        GGML_LOG_WARN("spac: %s: its driver has no stream memory operations that work, so nothing is queued ahead of "
                      "the CPU, and a step takes longer; a newer driver may have them\n",
                      ggml_backend_dev_name(ggml_backend_get_device(backend)));
    }
    return gate;
}

} // namespace spac
#endif
