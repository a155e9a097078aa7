#include "backend/stand_in.h"

#include "backend/device.h"
#include "backend/ggml_internals.h"
#include "ggml-cpu.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include <unistd.h>

namespace spac {
namespace {

std::mutex       settings_mutex;
StandInSettings  settings_now;
std::atomic<int> uploads_to_fail{0};

size_t host_memory() {
    return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// ---- memory: what its buffers hold, so that it can run out like a card

constexpr size_t    alignment = 128;
std::atomic<size_t> memory_used{0};

size_t memory_total() {
    const StandInSettings s = stand_in();
    return s.memory_mb > 0 ? static_cast<size_t>(s.memory_mb) << 20 : host_memory() / 2;
}

const char * buft_name(ggml_backend_buffer_type_t) { return "stand-in"; }
size_t       buft_alignment(ggml_backend_buffer_type_t) { return alignment; }
bool         buft_is_host(ggml_backend_buffer_type_t) { return false; }

void buffer_free(ggml_backend_buffer_t buffer) {
    memory_used -= buffer->size;
    free(buffer->context);
}
void * buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }
void   buffer_memset(ggml_backend_buffer_t, ggml_tensor * t, uint8_t value, size_t offset, size_t size) {
      memset(static_cast<char *>(t->data) + offset, value, size);
}
// As on a GPU, these are not ordered with any stream: whoever calls them has waited for what matters.
void buffer_set(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    memcpy(static_cast<char *>(t->data) + offset, data, size);
}
void buffer_get(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    memcpy(data, static_cast<const char *>(t->data) + offset, size);
}
ggml_backend_buffer_type_t buffer_type();
bool                       buffer_cpy(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
                          ggml_backend_buffer_t from = src->view_src ? src->view_src->buffer : src->buffer;
                          if (from->buft != buffer_type()) {
                              return false;
    }
                          memcpy(dst->data, src->data, ggml_nbytes(src));
                          return true;
}
void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(buffer->context, value, buffer->size); }

const ggml_backend_buffer_i buffer_iface = {
    /* .free_buffer   = */ buffer_free,
    /* .get_base      = */ buffer_base,
    /* .init_tensor   = */ nullptr,
    /* .memset_tensor = */ buffer_memset,
    /* .set_tensor    = */ buffer_set,
    /* .get_tensor    = */ buffer_get,
    /* .set_tensor_2d = */ nullptr,
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ buffer_cpy,
    /* .clear         = */ buffer_clear,
    /* .reset         = */ nullptr,
};

ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    if (memory_used.fetch_add(size) + size > memory_total()) {
        memory_used -= size;
        return nullptr;
    }
    void * data = std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
    if (data == nullptr) {
        memory_used -= size;
        return nullptr;
    }
    return ggml_backend_buffer_init(buft, buffer_iface, data, size);
}

ggml_backend_buffer_type_t buffer_type() {
    static ggml_backend_buffer_type buft = {
        {buft_name, buft_alloc, buft_alignment, nullptr, nullptr, buft_is_host},
        stand_in_device(),
        nullptr,
    };
    return &buft;
}

// Plain host memory under a name of its own: what pinned memory is to a GPU.
const char *          pinned_name(ggml_backend_buffer_type_t) { return "stand-in_Host"; }
ggml_backend_buffer_t pinned_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer != nullptr) {
        buffer->buft = buft;
    }
    return buffer;
}
ggml_backend_buffer_type_t pinned_type(ggml_backend_dev_t dev) {
    static ggml_backend_buffer_type buft = [dev] {
        ggml_backend_buffer_type type = {ggml_backend_cpu_buffer_type()->iface, dev, nullptr};
        type.iface.get_name           = pinned_name;
        type.iface.alloc_buffer       = pinned_alloc;
        return type;
    }();
    return &buft;
}

// ---- events

struct Event {
    std::mutex              mutex;
    std::condition_variable changed;
    uint64_t                recorded = 0; // number of the last record that was asked for
    uint64_t                reached  = 0; // number of the last record that its stream has passed

    uint64_t record() {
        const std::lock_guard lock(mutex);
        return ++recorded;
    }
    void reach(uint64_t n) {
        const std::lock_guard lock(mutex);
        reached = std::max(reached, n);
        changed.notify_all();
    }
    uint64_t last() {
        const std::lock_guard lock(mutex);
        return recorded;
    }
    void wait(uint64_t n) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return reached >= n; });
    }
};

// Queued operations hold events and graphs by shared pointers: freeing an event under way is safe, as it is on a GPU.
using EventPtr = std::shared_ptr<Event>;

// ---- a launched graph: nodes copied when it was launched, as a GPU captures kernel arguments

class Launch {
  public:
    explicit Launch(const ggml_cgraph * graph) {
        ctx_.reset(ggml_init({ggml_graph_overhead_custom(graph->n_nodes, false), nullptr, true}));
        tensors_.reserve(static_cast<size_t>(graph->n_nodes) * (GGML_MAX_SRC + 1));
        copy_ = ggml_new_graph_custom(ctx_.get(), std::max(graph->n_nodes, 1), false);
        for (int i = 0; i < graph->n_nodes; ++i) {
            copy_->nodes[copy_->n_nodes++] = capture(graph->nodes[i]);
        }
    }
    ggml_cgraph * graph() { return copy_; }

  private:
    ggml_tensor * capture(ggml_tensor * t) {
        if (t == nullptr) {
            return nullptr;
        }
        const auto known = map_.find(t);
        if (known != map_.end()) {
            return known->second;
        }
        tensors_.push_back(*t);
        ggml_tensor * copy = &tensors_.back();
        map_.emplace(t, copy);
        // sources need their shape and data, not their own sources: those ran before
        for (ggml_tensor *& src : copy->src) {
            src = capture_leaf(src);
        }
        return copy;
    }
    ggml_tensor * capture_leaf(ggml_tensor * t) {
        if (t == nullptr) {
            return nullptr;
        }
        const auto known = map_.find(t);
        if (known != map_.end()) {
            return known->second;
        }
        tensors_.push_back(*t);
        map_.emplace(t, &tensors_.back());
        return &tensors_.back();
    }

    ggml_context_ptr                                 ctx_;
    std::vector<ggml_tensor>                         tensors_; // reserved once: pointers stay
    std::unordered_map<ggml_tensor *, ggml_tensor *> map_;
    ggml_cgraph *                                    copy_;
};

// ---- streams

class Stream {
  public:
    Stream() : cpu_(ggml_backend_cpu_init()), worker_([this] { work(); }) {}
    ~Stream() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
            wake_.notify_all();
        }
        worker_.join();
        ggml_backend_free(cpu_);
    }

    void push(std::function<void()> operation) {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(operation));
        wake_.notify_all();
    }
    void synchronize() {
        std::unique_lock lock(mutex_);
        idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
    }
    void compute(ggml_cgraph * graph) {
        ggml_backend_cpu_set_n_threads(cpu_, std::max(1, stand_in().n_threads));
        if (ggml_backend_graph_compute(cpu_, graph) != GGML_STATUS_SUCCESS) {
            failed = true;
        }
    }

    std::atomic<bool> failed{false};
    bool              uploads = false;

  private:
    void work() {
        std::minstd_rand random(std::random_device{}());
        std::unique_lock lock(mutex_);
        while (true) {
            wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
            if (queue_.empty()) {
                return;
            }
            auto operation = std::move(queue_.front());
            queue_.pop_front();
            busy_ = true;
            lock.unlock();
            const StandInSettings s  = stand_in();
            double                us = s.latency_us;
            if (s.delay_us > 0) {
                us += std::uniform_real_distribution<double>(0, s.delay_us)(random);
            }
            if (us > 0) {
                std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us));
            }
            operation();
            operation = nullptr;
            lock.lock();
            busy_ = false;
            if (queue_.empty()) {
                idle_.notify_all();
            }
        }
    }

    ggml_backend_t                    cpu_;
    std::mutex                        mutex_;
    std::condition_variable           wake_, idle_;
    std::deque<std::function<void()>> queue_;
    bool                              busy_ = false, stop_ = false;
    std::thread                       worker_; // last: starts when the rest is there
};

Stream & stream_of(ggml_backend_t backend) { return *static_cast<Stream *>(backend->context); }

void transfer(void * dst, const void * src, size_t size) {
    const auto start = std::chrono::steady_clock::now();
    memcpy(dst, src, size);
    const double gb_s = stand_in().upload_gb_s;
    if (gb_s > 0) {
        std::this_thread::sleep_until(start + std::chrono::nanoseconds(static_cast<int64_t>(size / gb_s)));
    }
}

const char * backend_name(ggml_backend_t) { return "stand-in"; }

void backend_free(ggml_backend_t backend) {
    delete static_cast<Stream *>(backend->context);
    delete backend;
}

void backend_set_async(ggml_backend_t backend, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    Stream & stream = stream_of(backend);
    void *   dst    = static_cast<char *>(t->data) + offset;
    stream.push([&stream, dst, data, size] {
        if (stream.uploads && uploads_to_fail.load() > 0) {
            --uploads_to_fail;
            stream.failed = true;
            memset(dst, 0xff, size); // what a broken copy leaves behind
            return;
        }
        transfer(dst, data, size);
    });
}

void backend_get_async(ggml_backend_t backend, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    const void * src = static_cast<const char *>(t->data) + offset;
    stream_of(backend).push([src, data, size] { memcpy(data, src, size); });
}

void backend_synchronize(ggml_backend_t backend) { stream_of(backend).synchronize(); }

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    Stream & stream = stream_of(backend);
    if (stream.failed.exchange(false)) {
        return GGML_STATUS_FAILED;
    }
    auto launch = std::make_shared<Launch>(graph);
    stream.push([&stream, launch] { stream.compute(launch->graph()); });
    return GGML_STATUS_SUCCESS;
}

EventPtr & event_of(ggml_backend_event_t event) { return *static_cast<EventPtr *>(event->context); }

void backend_event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    EventPtr       e = event_of(event);
    const uint64_t n = e->record();
    stream_of(backend).push([e, n] { e->reach(n); });
}

void backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    EventPtr       e = event_of(event);
    const uint64_t n = e->last();
    stream_of(backend).push([e, n] { e->wait(n); });
}

const ggml_backend_i backend_iface = {
    /* .get_name            = */ backend_name,
    /* .free                = */ backend_free,
    /* .set_tensor_async    = */ backend_set_async,
    /* .get_tensor_async    = */ backend_get_async,
    /* .set_tensor_2d_async = */ nullptr,
    /* .get_tensor_2d_async = */ nullptr,
    /* .cpy_tensor_async    = */ nullptr,
    /* .synchronize         = */ backend_synchronize,
    /* .graph_plan_create   = */ nullptr,
    /* .graph_plan_free     = */ nullptr,
    /* .graph_plan_update   = */ nullptr,
    /* .graph_plan_compute  = */ nullptr,
    /* .graph_compute       = */ backend_compute,
    /* .event_record        = */ backend_event_record,
    /* .event_wait          = */ backend_event_wait,
    /* .graph_optimize      = */ nullptr,
};

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x73, 0x70, 0x61, 0x63, 0x2d, 0x73, 0x74, 0x61,
                             0x6e, 0x64, 0x2d, 0x69, 0x6e, 0x2d, 0x30, 0x31};
    return &guid;
}

// ---- the device

const char * device_name(ggml_backend_dev_t) { return "stand-in"; }
const char * device_description(ggml_backend_dev_t) { return "asynchronous stand-in for a GPU, in host memory"; }

void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *total            = memory_total();
    const size_t used = memory_used;
    *free             = used < *total ? *total - used : 0;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    props->name        = device_name(dev);
    props->description = device_description(dev);
    props->type        = device_type(dev);
    props->device_id   = nullptr;
    device_memory(dev, &props->memory_free, &props->memory_total);
    props->caps                      = {};
    props->caps.async                = true;
    props->caps.host_buffer          = true;
    props->caps.buffer_from_host_ptr = false;
    props->caps.events               = true;
    props->caps.mmap_support         = true;
}

ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) {
    return new ggml_backend{backend_guid(), backend_iface, dev, new Stream};
}

ggml_backend_buffer_type_t device_buft(ggml_backend_dev_t) { return buffer_type(); }

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buft) { return buft == buffer_type(); }

ggml_backend_event_t event_new(ggml_backend_dev_t dev) {
    return new ggml_backend_event{dev, new EventPtr(std::make_shared<Event>())};
}

void event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete static_cast<EventPtr *>(event->context);
    delete event;
}

void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    const EventPtr e = event_of(event);
    e->wait(e->last());
}

const ggml_backend_device_i device_iface = {
    /* .get_name             = */ device_name,
    /* .get_description      = */ device_description,
    /* .get_memory           = */ device_memory,
    /* .get_type             = */ device_type,
    /* .get_props            = */ device_props,
    /* .init_backend         = */ device_init,
    /* .get_buffer_type      = */ device_buft,
    /* .get_host_buffer_type = */ pinned_type,
    /* .buffer_from_host_ptr = */ nullptr,
    /* .supports_op          = */ device_supports_op,
    /* .supports_buft        = */ device_supports_buft,
    /* .offload_op           = */ nullptr,
    /* .event_new            = */ event_new,
    /* .event_free           = */ event_free,
    /* .event_synchronize    = */ event_synchronize,
};

} // namespace

ggml_backend_dev_t stand_in_device() {
    static ggml_backend_device device = {device_iface, nullptr, nullptr};
    return &device;
}

bool is_stand_in(ggml_backend_t backend) { return backend->iface.get_name == backend_name; }

bool stand_in_take_failure(ggml_backend_t backend) { return stream_of(backend).failed.exchange(false); }

void stand_in_mark_uploads(ggml_backend_t backend) { stream_of(backend).uploads = true; }

void set_stand_in(const StandInSettings & settings) {
    const std::lock_guard lock(settings_mutex);
    settings_now    = settings;
    uploads_to_fail = settings.fail_uploads;
}

StandInSettings stand_in() {
    const std::lock_guard lock(settings_mutex);
    return settings_now;
}

} // namespace spac
