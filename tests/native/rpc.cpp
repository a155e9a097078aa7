#include "rpc.h"

#include "backend/remote/rpc.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <atomic>
#include <cstdio>
#include <memory>
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

// A server on the loopback that serves one client after the other.
class Loopback {
  public:
    Loopback() : server_({"cpu"}, 2, ""), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
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
                server_.serve(fd);
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

    int port = 0;

  private:
    spac::RpcServer  server_;
    int              listener_;
    std::atomic<int> client_{-1};
    std::thread      thread_;
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
    Loopback loopback;
    for (const bool lose : {false, true, false}) {
        use(loopback, expected, lose);
    }
    return n_failed;
}
