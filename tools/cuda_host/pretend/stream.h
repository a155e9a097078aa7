// Streams, events and captured graphs.
//
// A stream is a queue and a worker that executes it in order, late. Handles are looked up, so that a destroyed one is
// noticed. The object of a handle lives until its last operation is over.
#pragma once

#include "counts.h"
#include "memory.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <driver_types.h>

namespace pretend {

struct Operation {
    Kind                  kind;
    std::function<void()> run     = nullptr; // null: only time passes
    std::function<bool()> ready   = nullptr; // null: ready at once
    std::vector<RangePtr> touches = {};
    int64_t               cost_ns = 0;       // time on the card
    const void *          what    = nullptr; // a kernel's identity, for comparing graphs
};

// The operations that a stream under capture got.
struct Capture {
    std::vector<Operation> operations;
    bool                   invalid = false;
};

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    Stream(int stream_number, int its_card) : number(stream_number), card(its_card) {}

    // Queues the operation, or notes it while the stream is under capture.
    void push(Operation operation);
    void synchronize();
    bool idle() { return done_ == pushed_; }
    void stop(); // the worker ends when the queue is empty

    const int                number, card;
    std::shared_ptr<Capture> capture;          // only the capturing thread uses it
    bool                     captures = false; // the capture began at this stream

  private:
    void work();

    std::mutex              mutex_;
    std::condition_variable wake_;
    std::deque<Operation>   queue_;
    std::atomic<uint64_t>   pushed_{0}, done_{0};
    int64_t                 busy_until_ = 0; // the card's time, on the worker's clock
    bool                    works_ = false, stops_ = false;
};
using StreamPtr = std::shared_ptr<Stream>;

class Event {
  public:
    explicit Event(int its_card) : card(its_card) {}

    // Returns the function to run when the stream gets there.
    std::function<void()> record();
    // Returns a function that tells if the stream has passed the record that is now the last one. It may be called
    // again.
    std::function<bool()> passed() const;
    void                  synchronize();

    const int                card;
    std::shared_ptr<Capture> capture; // the last record belongs to it

  private:
    std::shared_ptr<std::atomic<uint64_t>> reached_ = std::make_shared<std::atomic<uint64_t>>(0);
    std::atomic<uint64_t>                  recorded_{0};
};
using EventPtr = std::shared_ptr<Event>;

// The card of the calling thread, which cudaSetDevice or a context chooses.
int  current_card();
void set_current_card(int card);

// The objects of one kind by their handles, which are their addresses. An unknown handle gives null, and is a misuse.
template <typename T> class Table {
  public:
    explicit Table(const char * name) : name_(name) {}

    std::shared_ptr<T> add(const std::shared_ptr<T> & object) {
        const std::lock_guard lock(mutex_);
        return objects_[object.get()] = object;
    }
    std::shared_ptr<T> find(const void * handle, bool removes = false) {
        const std::lock_guard lock(mutex_);
        const auto            found = objects_.find(handle);
        if (found == objects_.end()) {
            misuse("a call with %s that does not exist, or no more", name_);
            return nullptr;
        }
        const auto object = found->second;
        if (removes) {
            objects_.erase(found);
        }
        return object;
    }
    std::vector<std::shared_ptr<T>> all() {
        const std::lock_guard           lock(mutex_);
        std::vector<std::shared_ptr<T>> found;
        for (const auto & [handle, object] : objects_) {
            found.push_back(object);
        }
        return found;
    }

  private:
    std::mutex                                 mutex_;
    const char *                               name_;
    std::map<const void *, std::shared_ptr<T>> objects_;
};
extern Table<Stream> & streams;
extern Table<Event> &  events;

// Each card has default streams, which are made at the first request.
StreamPtr stream_of(cudaStream_t handle);

// Does what a driver may do inside a call that launches or allocates (it loads a kernel, it looks for memory): waits
// for all streams, and lets no other call on a stream in meanwhile. It does so where IMPLICIT is set.
void wait_implicitly(bool surely);

// Returns an operation that runs others, in order.
Operation sequence(const std::shared_ptr<const std::vector<Operation>> & operations);

} // namespace pretend
