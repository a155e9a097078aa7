// Bindings of what a process takes of the machine: pools of threads for contexts and their CPUs, and signals.
#include "backend/split/thread_pool.h"
#include "bindings/bindings.h"
#include "session/llama_models.h"

#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

namespace py = pybind11;
using spac::ThreadPool;

namespace {

constexpr int most_threads = 512; // ggml's limit

// A thread pool that Python can end before its object is destroyed.
class PyThreadPool {
  public:
    PyThreadPool(int n_threads, int poll) {
        if (n_threads < 1 || n_threads > most_threads || poll < 0 || poll > 100) {
            throw spac::InputError("a pool of " + std::to_string(n_threads) + " threads that poll " +
                                   std::to_string(poll) + ": expected 1 to 512 threads and 0 to 100");
        }
        pool_ = std::make_unique<ThreadPool>(n_threads, static_cast<uint32_t>(poll));
    }

    void attach(spac::Address ctx) {
        if (pool_ == nullptr) {
            throw spac::InputError("the thread pool is closed");
        }
        spac::attach_pool(ctx, *pool_);
    }

    void close() { pool_.reset(); }

  private:
    std::unique_ptr<ThreadPool> pool_;
};

// The handler may run on any thread, between any two instructions, so it reads lock-free words only.
std::array<std::atomic<void (*)(int)>, 65> handlers{};
std::atomic<int64_t>                       first_ns{0}, after_ns{0};

int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int number) {
    const int     error = errno;
    const int64_t now   = now_ns();
    int64_t       first = 0;
    if (!first_ns.compare_exchange_strong(first, now) && now - first >= after_ns.load()) {
        std::signal(number, SIG_DFL);
        raise(number); // It is delivered when this handler returns.
    } else {
        handlers[static_cast<size_t>(number)].load()(number);
    }
    errno = error;
}

// From now on, this signal's present handler gets the first signal. One that comes `after_s` seconds later or more, of
// this number or another one that was given here, ends the process by its default action. A signal within that time
// goes to the handler too, because programs such as timeout(1) send each signal twice. Setting another handler ends
// this. A call forgets the signals before it, or with `has_come`, begins as if one came now.
void end_at_second_signal(int number, double after_s, bool has_come) {
    struct sigaction action {};
    if (number < 1 || number >= static_cast<int>(handlers.size()) || sigaction(number, nullptr, &action) != 0) {
        throw spac::InputError("there is no signal " + std::to_string(number));
    }
    first_ns.store(has_come ? now_ns() : 0);
    after_ns.store(static_cast<int64_t>(after_s * 1e9));
    const bool is_plain = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL &&
                          action.sa_handler != SIG_IGN && action.sa_handler != on_signal;
    if (is_plain) { // by default, the first signal ends the process
        handlers[static_cast<size_t>(number)].store(action.sa_handler);
        action.sa_handler = on_signal;
        sigaction(number, &action, nullptr);
    }
}

} // namespace

void bind_machine(py::module_ & m) {
    py::class_<PyThreadPool>(m, "ThreadPool",
                             "A pool of threads that stay from graph to graph, for contexts on the CPU.")
        .def(py::init<int, int>(), py::arg("n_threads"), py::arg("poll"))
        .def("attach", &PyThreadPool::attach, py::arg("context"))
        .def("close", &PyThreadPool::close);
    m.def("set_placing", &spac::set_placing, py::arg("cpus"),
          "Set the CPUs for the threads of pools that are made from now on.");
    m.def("end_at_second_signal", &end_at_second_signal, py::arg("number"), py::arg("after_s"),
          py::arg("has_come") = false);
}
