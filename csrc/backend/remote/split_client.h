// A server's devices as one client uses them: each with slots, and with a store for the experts in host memory.
//
// A client that knows spac sees a second device behind each one, whose only memory is the device's store. It puts the
// experts of its layers there, and sends whole layers' graphs to the first device, whose stream splits them. A client
// that does not know it sees the first devices alone, as plain ones.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "core/not_copied.h"
#include "ggml-backend.h"

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace spac {

// Returns the memory that programs can still take, and all of it; ggml calls all memory of the machine free. It is for
// the interface of devices whose memory is the host's.
void memory_of_host(ggml_backend_dev_t, size_t * free, size_t * total);

// Weights of a store that keep their addresses, for graphs that arrive as messages.
//
// ggml's RPC server makes every tensor of a graph anew, in memory that the next graph takes. spac knows a model's
// layers by the addresses of their weights, and the reconciler reads them between graphs. So a graph's weights in
// stores are replaced by copies that stay.
class ModelExperts;

class StoreWeights {
  public:
    // Makes the nodes of a graph read copies of their weights in stores. Equal weights of all graphs have one copy.
    // Returns the experts of the graph's first such weight; null without one.
    std::shared_ptr<ModelExperts> replace(ggml_cgraph * graph);
    // Returns the bytes of a model's weights that nodes with rows have read, as buffers are padded.
    size_t bytes_met(const ModelExperts * model) const;

  private:
    struct Weight {
        ggml_tensor *               tensor;
        std::weak_ptr<ModelExperts> experts; // the memory may have belonged to an earlier model
        bool                        met = false;
    };
    using Key = std::array<uint64_t, 2 * GGML_MAX_DIMS + 3>;

    Weight & copy_of(const ggml_tensor * weight, const std::shared_ptr<ModelExperts> & experts);

    std::deque<ggml_tensor>                tensors_; // no address is used twice
    std::map<Key, Weight>                  known_;
    std::map<const ModelExperts *, size_t> met_;
};

class SplitClient : NotCopied {
  public:
    explicit SplitClient(int n_threads);
    ~SplitClient();

    // Adds the inner device `name`. `plain` computes its graphs unless begin() is called.
    void add(const std::string & name, ggml_backend_t plain);
    // Return what ggml's server computes on: the devices, and their stores in the same order.
    std::vector<ggml_backend_t> devices();
    std::vector<ggml_backend_t> stores();

    // ---- for the thread that serves
    // Notes that the client uses the stores. Throws DeviceError if a device gives no stream.
    void begin();
    // Frees what the devices hold. The client's buffers are free already.
    void end();

    // ---- for the thread of the policy
    // Waits until more than `known` graphs with experts have been computed, and returns their number, or until the
    // client has left: then it returns -1.
    int64_t await_graph(int64_t known);
    // Returns the experts of the client's models that are loaded and whose layers are known.
    std::vector<std::shared_ptr<Experts>> models() const;
    // Holds up the next graph while the returned lock lives.
    std::unique_lock<std::mutex> pause() { return std::unique_lock(computing_); }

  private:
    struct Device;
    struct Model {
        std::shared_ptr<ModelExperts> experts;
        size_t                        bytes    = 0; // of its store's buffers
        int                           n_graphs = 0;
        bool                          is_known = false; // all its layers are
    };

    static ggml_status           compute(ggml_backend_t backend, ggml_cgraph * graph);
    static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size);
    static ggml_backend_buffer_t allocate_store(ggml_backend_buffer_type_t type, size_t size);

    bool        drop_slots();
    ggml_status compute_split(Device & device, ggml_cgraph * graph);
    void        begin_model(size_t bytes);

    const int                  n_threads_;
    std::list<Device>          devices_;
    StoreWeights               weights_;
    std::unique_ptr<LoadScope> scope_;             // of the model that comes, on the thread that serves
    bool                       is_loading_ = true; // no graph with experts has come since the last buffer
    std::mutex                 computing_;

    mutable std::mutex      mutex_; // guards what follows
    std::condition_variable changed_;
    std::vector<Model>      models_;
    int64_t                 n_graphs_ = 0;
    bool                    has_left_ = false;
};

} // namespace spac
