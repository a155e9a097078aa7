#include "backend/remote/rpc.h"

#include "backend/device/device.h"
#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "backend/remote/rpc_socket.h"
#include "backend/remote/split_client.h"
#include "backend/split/thread_pool.h"
#include "core/error.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace spac {
struct RpcServer::Impl {
    std::vector<ggml_backend_t> backends;
    std::vector<std::string>    names; // of inner devices, in the order of `backends`; the CPU's backend comes last
    int                         n_threads = 1;
    bool                        splits    = false;
    ggml_backend_device         cpu{}; // the CPU's device, with `memory_of_host`
    std::unique_ptr<ThreadPool> pool;
    std::string                 cache;

    void lend_cpu() {
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

RpcServer::RpcServer(const std::vector<std::string> & devices, int n_threads, const std::string & cache, bool splits)
    : impl_(std::make_unique<Impl>()) {
    impl_->cache     = cache;
    impl_->n_threads = n_threads;
    impl_->splits    = splits;
    bool with_cpu    = false;
    for (const std::string & name : devices) {
        std::string lower = name;
        std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
        if (lower == "cpu") {
            with_cpu = true;
            continue;
        }
        ggml_backend_t backend = ggml_backend_dev_init(inner_device(name), nullptr);
        if (backend == nullptr) {
            throw DeviceError("the device " + name + " cannot be used");
        }
        impl_->backends.push_back(backend);
        impl_->names.push_back(name);
    }
    if (splits && impl_->names.size() > most_stores) {
        throw InputError(std::to_string(impl_->names.size()) + " devices are too many: at most " +
                         std::to_string(most_stores) + " can be lent");
    }
    if (with_cpu) { // the devices that split are the first ones
        impl_->lend_cpu();
    }
}

RpcServer::~RpcServer() = default;

std::vector<LentDevice> RpcServer::devices() const {
    std::vector<LentDevice> lent;
    for (ggml_backend_t backend : impl_->backends) {
        ggml_backend_dev_t device = ggml_backend_get_device(backend);
        LentDevice         each{ggml_backend_dev_name(device), ggml_backend_dev_description(device), 0, 0};
        ggml_backend_dev_memory(device, &each.free, &each.total);
        lent.push_back(each);
    }
    return lent;
}

// ---- a client

ServedClient::ServedClient(std::shared_ptr<RpcServer> server)
    : server_(std::move(server)), split_(std::make_unique<SplitClient>(server_->impl_->n_threads)) {
    const RpcServer::Impl & lent = *server_->impl_;
    for (size_t i = 0; lent.splits && i < lent.names.size(); ++i) {
        split_->add(lent.names[i], lent.backends[i]);
    }
}

ServedClient::~ServedClient() = default;

void ServedClient::serve(int fd) {
    const RpcServer::Impl & lent = *server_->impl_;
    Lending                 all;
    all.devices          = lent.backends;
    all.stores           = split_->stores();
    all.split            = [this] { split_->begin(); };
    const auto splitting = split_->devices();
    std::copy(splitting.begin(), splitting.end(), all.devices.begin());

    struct End {
        SplitClient & split;
        ~End() { split.end(); }
    } const end{*split_};
    const AbortGuard guard;
    try {
        serve_rpc_client(all, lent.cache.empty() ? nullptr : lent.cache.c_str(), fd);
    } catch (const Error &) {
        throw;
    } catch (const std::exception & error) { // a length that no memory has, for instance
        throw InputError(std::string("a message cannot be used (") + error.what() + ")");
    }
}

int64_t ServedClient::await_graph(int64_t known) { return split_->await_graph(known); }

std::vector<std::shared_ptr<Experts>> ServedClient::models() const { return split_->models(); }

std::unique_lock<std::mutex> ServedClient::pause() { return split_->pause(); }

std::string rpc_version_text() { return rpc_version().text(); }

} // namespace spac
