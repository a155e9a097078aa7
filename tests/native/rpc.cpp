#include "rpc.h"

#include "backend/experts/experts.h"
#include "backend/remote/rpc.h"
#include "core/error.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "moe.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

int n_failed = 0;

void check(bool good, const char * what) {
    if (!good) {
        ++n_failed;
        fprintf(stderr, "rpc: %s\n", what);
    }
}

// Gives a client's models slots, and moves other experts there after each graph, until the client leaves. Returns the
// activations that hit slots.
uint64_t move_experts(spac::ServedClient & client) {
    std::vector<std::shared_ptr<spac::Experts>> models;
    std::mt19937                                random(7);
    for (int64_t known = client.await_graph(0); known >= 0; known = client.await_graph(known)) {
        models = client.models();
        for (const auto & experts : models) {
            try {
                const auto n_layer = static_cast<size_t>(experts->n_layer());
                if (experts->slots().n_slots == 0) {
                    const auto pause = client.pause();
                    experts->attach_slots(8);
                }
                std::vector<int32_t> priority(n_layer * static_cast<size_t>(experts->n_expert())), least(n_layer, 3);
                for (int32_t & each : priority) {
                    each = static_cast<int32_t>(random() % 6);
                }
                experts->submit(priority.data(), least.data());
            } catch (const spac::Error &) { // the client has freed the model
            }
        }
    }
    uint64_t n_hits = 0;
    for (const auto & experts : models) {
        n_hits += experts->stats().activations_hit;
    }
    return n_hits;
}

// A server on the loopback that serves one client after the other.
class Loopback {
  public:
    explicit Loopback(const char * device)
        : server_(std::make_shared<spac::RpcServer>(std::vector<std::string>{device}, 2, "", true)),
          listener_(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family      = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size          = sizeof(address);
        check(bind(listener_, reinterpret_cast<sockaddr *>(&address), size) == 0, "bind");
        check(listen(listener_, 1) == 0, "listen");
        check(getsockname(listener_, reinterpret_cast<sockaddr *>(&address), &size) == 0, "getsockname");
        port    = ntohs(address.sin_port);
        thread_ = std::thread([this] {
            for (int fd = accept(listener_, nullptr, nullptr); fd >= 0; fd = accept(listener_, nullptr, nullptr)) {
                client_ = dup(fd);
                spac::ServedClient client(server_);
                std::thread        policy([&] { n_hits += move_experts(client); });
                client.serve(fd);
                policy.join();
                close(client_.exchange(-1));
            }
        });
    }
    ~Loopback() {
        stop();
        close(listener_);
    }
    // Waits until the last client has left, and serves no other one.
    void stop() {
        if (thread_.joinable()) {
            shutdown(listener_, SHUT_RDWR);
            thread_.join();
        }
    }
    void drop_client() { shutdown(client_, SHUT_RDWR); }

    int                   port = 0;
    std::atomic<uint64_t> n_hits{0}; // activations that hit slots

  private:
    std::shared_ptr<spac::RpcServer> server_;
    int                              listener_;
    std::atomic<int>                 client_{-1};
    std::thread                      thread_;
};

// A product of two matrices on a backend.
struct Product {
    explicit Product(ggml_backend_t on) : backend(on), context(ggml_init({1 << 20, nullptr, true})) {
        ggml_tensor * a = ggml_new_tensor_2d(context, GGML_TYPE_F32, 64, 32);
        ggml_tensor * b = ggml_new_tensor_2d(context, GGML_TYPE_F32, 64, 3);
        out             = ggml_mul_mat(context, a, b);
        graph           = ggml_new_graph(context);
        ggml_build_forward_expand(graph, out);
        buffer = ggml_backend_alloc_ctx_tensors(context, backend);
        if (buffer != nullptr) {
            fill(a);
            fill(b);
        }
    }
    ~Product() {
        ggml_backend_buffer_free(buffer);
        ggml_free(context);
    }
    static void fill(ggml_tensor * tensor) {
        std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
        for (size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(i % 17) - 8;
        }
        ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    }
    ggml_status        compute() const { return ggml_backend_graph_compute(backend, graph); }
    std::vector<float> result() const {
        std::vector<float> values(static_cast<size_t>(ggml_nelements(out)));
        ggml_backend_tensor_get(out, values.data(), 0, ggml_nbytes(out));
        return values;
    }

    ggml_backend_t        backend;
    ggml_context *        context;
    ggml_tensor *         out;
    ggml_cgraph *         graph;
    ggml_backend_buffer_t buffer;
};

void use(Loopback & loopback, const std::vector<float> & expected, bool lose) {
    const auto     server  = spac::RemoteServer::open("127.0.0.1", loopback.port);
    auto *         device  = reinterpret_cast<ggml_backend_dev_t>(server->devices().front().handle);
    ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
    {
        const Product product(backend);
        check(product.compute() == GGML_STATUS_SUCCESS && product.result() == expected, "the product");
        check(product.compute() == GGML_STATUS_SUCCESS && product.result() == expected, "the product once more");
        if (lose) {
            loopback.drop_client();
            product.compute(); // the client may notice it now or later
            check(product.result() == std::vector<float>(expected.size()), "an empty answer");
            check(!spac::remote_loss(device).empty(), "the loss");
            check(product.compute() == GGML_STATUS_FAILED, "a graph on a lost server");
            const Product another(backend); // no memory, and nothing ends the process
            check(another.buffer == nullptr, "memory of a lost server");
        }
    }
    ggml_backend_free(backend);
}

// A network whose layers are split on a server, while experts move there. Its client leaves in the middle of that.
void use_split(const Loopback & loopback, unsigned seed, bool biases) {
    const auto   server = spac::RemoteServer::open("127.0.0.1", loopback.port);
    const auto & lent   = server->devices().front();
    check(lent.store != 0, "the store");
    auto * const device = reinterpret_cast<ggml_backend_dev_t>(lent.handle);
    auto * const store  = reinterpret_cast<ggml_backend_dev_t>(lent.store);
    MoeShape     shape;
    shape.biases = biases;

    auto * const     host = ggml_backend_cpu_buffer_type();
    const MoeWeights here(shape, seed, {{host, host}});
    const MoeWeights there(shape, seed, {{ggml_backend_dev_buffer_type(store), ggml_backend_dev_buffer_type(device)}});
    MoeRunner        cpu(here, {}), remote(there, {device});
    std::mt19937     random(seed);
    std::normal_distribution<float> normal;
    for (int round = 0; round < 24; ++round) {
        std::vector<float> input(static_cast<size_t>(shape.width) * (1 + round % 4));
        for (float & value : input) {
            value = normal(random);
        }
        check(remote.run(input) == cpu.run(input), "a network that is split");
    }
}

} // namespace

int check_rpc() {
    ggml_backend_t     cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    std::vector<float> expected;
    {
        const Product product(cpu);
        product.compute();
        expected = product.result();
    }
    ggml_backend_free(cpu);
    Loopback loopback("cpu");
    for (const bool lose : {false, true, false}) {
        use(loopback, expected, lose);
    }
    Loopback splitting("simulated");
    for (unsigned seed = 1; seed < 4; ++seed) {
        use_split(splitting, seed, seed % 2 == 0);
    }
    splitting.stop();
    check(splitting.n_hits > 0, "no activation hit a slot");
    return n_failed;
}
