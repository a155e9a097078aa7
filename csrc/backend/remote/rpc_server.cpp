#include "backend/remote/rpc.h"

#include "backend/device/device.h"
#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "backend/remote/rpc_socket.h"
#include "backend/split/thread_pool.h"
#include "core/error.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <utility>

namespace spac {
namespace {

// Returns the memory that programs can still take, in bytes; 0 if the system does not tell.
size_t available_memory() {
    std::ifstream file("/proc/meminfo");
    std::string   name;
    size_t        kilobytes = 0;
    std::string   unit;
    while (file >> name >> kilobytes && std::getline(file, unit)) {
        if (name == "MemAvailable:") {
            return kilobytes * 1024;
        }
    }
    return 0;
}

// ggml calls all memory of the machine free.
void memory_of_host(ggml_backend_dev_t, size_t * free, size_t * total) {
    ggml_backend_dev_memory(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), free, total);
    const size_t available = available_memory();
    *free                  = available > 0 ? std::min(*free, available) : *free;
}

} // namespace

struct RpcServer::Impl {
    std::vector<ggml_backend_t> backends;
    ggml_backend_device         cpu{}; // the CPU's device, with `memory_of_host`
    std::unique_ptr<ThreadPool> pool;
    std::string                 cache;

    void lend_cpu(int n_threads) {
        ggml_backend_t backend = ggml_backend_cpu_init();
        if (backend == nullptr) {
            throw MemoryError("ggml's CPU backend cannot be made");
        }
        cpu                  = *ggml_backend_get_device(backend);
        cpu.iface.get_memory = memory_of_host;
        backend->device      = &cpu;
        pool                 = std::make_unique<ThreadPool>(n_threads, 0); // other programs use the cores meanwhile
        ggml_backend_cpu_set_n_threads(backend, n_threads);
        ggml_backend_cpu_set_threadpool(backend, pool->get());
        backends.push_back(backend);
    }

    ~Impl() {
        for (ggml_backend_t backend : backends) {
            ggml_backend_free(backend);
        }
    }
};

RpcServer::RpcServer(const std::vector<std::string> & devices, int n_threads, const std::string & cache)
    : impl_(std::make_unique<Impl>()) {
    impl_->cache = cache;
    for (const std::string & name : devices) {
        std::string lower = name;
        std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
        if (lower == "cpu") {
            impl_->lend_cpu(n_threads);
            continue;
        }
        ggml_backend_t backend = ggml_backend_dev_init(inner_device(name), nullptr);
        if (backend == nullptr) {
            throw DeviceError("the device " + name + " cannot be used");
        }
        impl_->backends.push_back(backend);
    }
}

RpcServer::~RpcServer() = default;

std::vector<ServedDevice> RpcServer::devices() const {
    std::vector<ServedDevice> served;
    for (ggml_backend_t backend : impl_->backends) {
        ggml_backend_dev_t device = ggml_backend_get_device(backend);
        ServedDevice       each{ggml_backend_dev_name(device), ggml_backend_dev_description(device), 0, 0};
        ggml_backend_dev_memory(device, &each.free, &each.total);
        served.push_back(each);
    }
    return served;
}

void RpcServer::serve(int fd) const {
    const AbortGuard guard;
    try {
        serve_rpc_client(impl_->backends, impl_->cache.empty() ? nullptr : impl_->cache.c_str(), fd);
    } catch (const Error &) {
        throw;
    } catch (const std::exception & error) { // a length that no memory has, for instance
        throw InputError(std::string("a message cannot be used (") + error.what() + ")");
    }
}

std::string rpc_version_text() { return rpc_version().text(); }

} // namespace spac
