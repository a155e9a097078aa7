// Streams, events, captured graphs.
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <algorithm>

using namespace pretend;

namespace {

// Returns true if an executable graph can take over the other's parameters.
bool same_shape(const std::vector<Operation> & a, const std::vector<Operation> & b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Operation & x, const Operation & y) { return x.kind == y.kind && x.what == y.what; });
}

// Both kinds of graphs, captured and executable.
using Graph = std::shared_ptr<const std::vector<Operation>>;
template <typename T> Graph * as_graph(T handle) { return reinterpret_cast<Graph *>(handle); }

// Refuses a call of the host on a stream under capture.
bool refused(const std::shared_ptr<Capture> & capture, const char * call) {
    if (capture == nullptr) {
        return false;
    }
    misuse("%s, of a stream under capture", call);
    capture->invalid = true;
    return true;
}

} // namespace

PRETEND_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t * stream, unsigned int) {
    static std::atomic<int> n_streams{per_thread_stream + 1};
    const int               number = std::min(n_streams++, max_streams - 1);
    *stream = reinterpret_cast<cudaStream_t>(streams.add(std::make_shared<Stream>(number, current_card())).get());
    count(Kind::stream_create, number);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    const StreamPtr stream = streams.find(handle, true);
    if (stream == nullptr) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    stream->stop();
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr || refused(stream->capture, "cudaStreamSynchronize")) {
        return fail(stream == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorStreamCaptureUnsupported);
    }
    stream->synchronize();
    count(Kind::stream_synchronize, stream->number);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int) {
    const StreamPtr stream = stream_of(handle);
    const EventPtr  event  = events.find(event_handle);
    if (stream == nullptr || event == nullptr) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    count(Kind::event_wait, stream->number);
    if (event->capture != nullptr) {
        stream->capture = event->capture; // the stream joins; the graph allows the order of the calls
        return cudaSuccess;
    }
    if (stream->capture != nullptr) {
        misuse("a stream under capture waits for an event from outside");
        stream->capture->invalid = true;
        return fail(cudaErrorStreamCaptureIsolation);
    }
    stream->push({Kind::event_wait, nullptr, event->passed()});
    return cudaSuccess;
}

// ---- events

PRETEND_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned int) {
    *event = reinterpret_cast<cudaEvent_t>(events.add(std::make_shared<Event>(current_card())).get());
    count(Kind::event_create);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return events.find(event, true) != nullptr ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}

PRETEND_API cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
    const StreamPtr stream = stream_of(handle);
    const EventPtr  event  = events.find(event_handle);
    if (stream == nullptr || event == nullptr) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    if (event->card != stream->card) {
        misuse("a stream of card %d records an event of card %d", stream->card, event->card);
        return fail(cudaErrorInvalidResourceHandle);
    }
    count(Kind::event_record, stream->number);
    event->capture = stream->capture;
    if (event->capture == nullptr) {
        stream->push({Kind::event_record, event->record()});
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    const EventPtr event = events.find(handle);
    if (event == nullptr || refused(event->capture, "cudaEventSynchronize")) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    event->synchronize();
    count(Kind::event_synchronize);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    const EventPtr event = events.find(handle);
    if (event == nullptr || refused(event->capture, "cudaEventQuery")) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    count(Kind::event_query);
    return event->passed()() ? cudaSuccess : cudaErrorNotReady;
}

// ---- capture

PRETEND_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr || stream->number == legacy_stream || stream->capture != nullptr) {
        misuse("a capture begins on the default stream, or on one that is under capture");
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    stream->capture  = std::make_shared<Capture>();
    stream->captures = true;
    note_capture(1);
    count(Kind::graph_capture, stream->number);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t * graph) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr || !stream->captures) {
        misuse("a capture ends that did not begin on this stream");
        return fail(cudaErrorStreamCaptureUnmatched);
    }
    const auto capture = stream->capture;
    for (const StreamPtr & other : streams.all()) {
        if (other->capture == capture) {
            other->capture = nullptr;
        }
    }
    stream->captures = false;
    note_capture(-1);
    if (capture->invalid) {
        *graph = nullptr;
        return fail(cudaErrorStreamCaptureInvalidated);
    }
    auto operations = std::make_shared<const std::vector<Operation>>(std::move(capture->operations));
    *graph          = reinterpret_cast<cudaGraph_t>(new Graph(std::move(operations)));
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus * status) {
    const StreamPtr stream = stream_of(handle);
    const bool      yes    = stream != nullptr && stream->capture != nullptr;
    *status                = yes ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

// ---- graphs

PRETEND_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete as_graph(graph);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long) {
    wait_implicitly(true);
    count(Kind::graph_instantiate);
    if (settings().graph_bytes > 0 && !device_take(current_card(), settings().graph_bytes)) {
        return fail(cudaErrorMemoryAllocation);
    }
    *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*as_graph(graph)));
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete as_graph(exec);
    device_give(current_card(), settings().graph_bytes);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                            cudaGraphExecUpdateResultInfo * info) {
    count(Kind::graph_update);
    *info = {};
    if (!same_shape(**as_graph(exec), **as_graph(graph))) {
        info->result = cudaGraphExecUpdateErrorTopologyChanged;
        return fail(cudaErrorGraphExecUpdateFailure);
    }
    *as_graph(exec) = *as_graph(graph);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr) {
        return fail(cudaErrorInvalidResourceHandle);
    }
    wait_implicitly(false);
    count(Kind::graph_launch, stream->number);
    stream->push(sequence(*as_graph(exec)));
    return cudaSuccess;
}
