// Bindings of the CPU's threads: pools for contexts, the CPUs that the threads run on, and signals.
#include "backend/split/thread_pool.h"
#include "bindings/bindings.h"
#include "core/second_signal.h"
#include "session/attach_pool.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using spac::ThreadPool;

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

    void attach(uintptr_t ctx) {
        if (pool_ == nullptr) {
            throw spac::InputError("the thread pool is closed");
        }
        spac::attach_pool(reinterpret_cast<void *>(ctx), *pool_);
    }

    void close() { pool_.reset(); }

  private:
    std::unique_ptr<ThreadPool> pool_;
};

} // namespace

void bind_threads(py::module_ & m) {
    py::class_<PyThreadPool>(m, "ThreadPool",
                             "A pool of threads that stay from graph to graph, for contexts on the CPU.")
        .def(py::init<int, int>(), py::arg("n_threads"), py::arg("poll"))
        .def("attach", &PyThreadPool::attach, py::arg("context"))
        .def("close", &PyThreadPool::close);
    m.def(
        "set_placing",
        [](std::vector<int> cpus, bool strict) {
            spac::set_placing({std::move(cpus), strict});
        },
        py::arg("cpus"), py::arg("strict"), "Set the CPUs on which threads of pools run, for pools made from now on.");
    m.def("end_at_second_signal", &spac::end_at_second_signal, py::arg("number"), py::arg("after_s"),
          py::arg("has_come") = false);
}
