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
#include <memory>
#include <mutex>
#include <vector>

#include <driver_types.h>

namespace pretend {

struct Operation {
    Kind                  kind    = Kind::kernel;
    const void *          what    = nullptr; // a kernel's identity, for comparing graphs
    int64_t               cost_ns = 0;       // time on the card
    std::function<void()> run;               // null: only time passes
    std::function<bool()> ready;             // null: ready at once
    std::vector<RangePtr> touches;
};

// The operations that a stream under capture got.
struct Capture {
    std::vector<Operation> operations;
    bool                   invalid = false;
};

class Stream {
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

    std::weak_ptr<Stream> self;

  private:
    void work();
    void execute(const Operation & operation);

    std::mutex              mutex_;
    std::condition_variable wake_, over_;
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
    struct State {
        std::mutex              mutex;
        std::condition_variable changed;
        std::atomic<uint64_t>   reached{0};
    };
    std::shared_ptr<State> state_ = std::make_shared<State>();
    std::atomic<uint64_t>  recorded_{0};
};
using EventPtr = std::shared_ptr<Event>;

// The card of the calling thread, which cudaSetDevice or a context chooses.
int  current_card();
void set_current_card(int card);

// Handles. Each card has default streams, which are made at the first request. New streams and events belong to the
// current card. An unknown handle gives null, and is a misuse.
StreamPtr              stream_of(cudaStream_t handle);
cudaStream_t           add_stream();
bool                   remove_stream(cudaStream_t handle);
std::vector<StreamPtr> all_streams();
EventPtr               event_of(cudaEvent_t handle);
cudaEvent_t            add_event();
bool                   remove_event(cudaEvent_t handle);

// Does what a driver may do inside a call that launches or allocates (it loads a kernel, it looks for memory): waits
// for all streams, and lets no other call on a stream in meanwhile. It does so where IMPLICIT is set.
void wait_implicitly(bool surely);

// Returns an operation that runs others, in order.
Operation sequence(const std::shared_ptr<const std::vector<Operation>> & operations);

int64_t now_ns();

} // namespace pretend
