#include "hooks/loop_response.h"

#include "core/error.h"
#include "core/home_process.h"
#include "core/not_copied.h"

#include "server-queue.h"
#include "session/big_stack.h"

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

namespace spac {

namespace {

// Calls a function on a stack for deep recursions. A failed assertion of llama.cpp throws.
void deep(const std::function<void()> & call) {
    const auto guarded = [&] {
        const AbortGuard guard;
        call();
    };
    if (!on_stack(schema_stack, guarded)) {
        throw InputError("there is no memory for a stack");
    }
}

class Response;
thread_local Response * running_here = nullptr; // the answer whose handler runs on this thread

struct Here : NotCopied {
    explicit Here(Response & response) { running_here = &response; }
    ~Here() { running_here = nullptr; }
};

// An answer and what it needs until its end. It may outlive the server.
class Response : public LoopResponse, Cancelled {
  public:
    Response(const LoopRequest & request, const server_http_context::handler_t & handler,
             std::shared_ptr<RequestSettings> settings, std::shared_ptr<Running> running)
        : handler_(handler), settings_(std::move(settings)), running_(std::move(running)),
          stops_([this] { return is_cancelled_.load() || running_->stops(); }),
          request_{request.params, request.headers, "/" + request.route, "", request.body, {}, stops_} {
        running_->add(*this);
    }
    ~Response() override {
        if (home_.is_here()) {
            running_->remove(*this);
        }
        close();
    }

    void run() override {
        home_.check("the engine");
        const std::lock_guard hold(lock_);
        if (running_->stops()) {
            response_ = error_response("the server is stopping", ERROR_TYPE_UNAVAILABLE);
            return;
        }
        try {
            // llama.cpp's work on schemas, templates and answers may recurse as deep as these are long.
            deep([&] {
                const RequestSettings::Reading in_loop(*settings_);
                const Here                     here(*this);
                response_ = handler_(request_);
            });
            if (request_.path == "/set-lora-adapters" && response_->status == 200) {
                settings_->set_adapter_scales(request_.body);
            }
        } catch (const std::bad_alloc & error) {
            response_ = error_response(error.what(), ERROR_TYPE_SERVER);
        } catch (const std::exception & error) {
            // A handler reads the request, and the answer once a slot has made it.
            const bool is_answer = std::string(error.what()).rfind("The model produced output", 0) == 0;
            response_ = error_response(error.what(), is_answer ? ERROR_TYPE_SERVER : ERROR_TYPE_INVALID_REQUEST);
        }
    }

    int         status() const override { return response_ == nullptr ? 503 : response_->status; }
    std::string content_type() const override { return response_ == nullptr ? "" : response_->content_type; }
    std::string body() const override { return response_ == nullptr ? "" : response_->data; }

    std::map<std::string, std::string> headers() const override {
        return response_ == nullptr ? std::map<std::string, std::string>() : response_->headers;
    }

    bool is_stream() const override { return response_ != nullptr && response_->is_stream(); }
    bool next(std::string & part) override {
        home_.check("the engine");
        const std::lock_guard hold(lock_);
        has_more_ = has_more_ && response_ != nullptr;
        if (has_more_) {
            deep([&] { has_more_ = response_->next(part); });
        }
        return has_more_;
    }
    void cancel() noexcept override {
        is_cancelled_.store(true);
        if (home_.is_here()) {
            const std::lock_guard hold(waiting_lock_);
            leave();
        }
    }
    // Calls what waits for a reader's results. It ends as soon as the answer is cancelled.
    template <typename Wait> auto wait(server_response_reader & reader, Wait && wait) {
        struct Waiting : NotCopied {
            Waiting(Response & response, server_response_reader * reader) : response_(response) {
                response_.set_waiting(reader);
            }
            ~Waiting() { response_.set_waiting(nullptr); } // also where a result cannot be read

            Response & response_;
        };
        const Waiting waiting(*this, reader.id_tasks.empty() ? nullptr : &reader);
        return wait();
    }
    void close() noexcept override {
        cancel();
        if (!home_.is_here()) { // a child of the process has none of the loop's threads
            static_cast<void>(response_.release());
            return;
        }
        const std::lock_guard hold(lock_);
        if (response_ != nullptr) {
            response_->on_complete();
            response_.reset();
        }
    }

  private:
    void cancel_now() noexcept override { close(); }

    void set_waiting(server_response_reader * reader) {
        const std::lock_guard hold(waiting_lock_);
        waiting_ = reader;
        task_    = reader != nullptr ? *reader->id_tasks.begin() : -1;
        if (is_cancelled_.load()) {
            leave();
        }
    }
    // Lets the reader have an error as a result, after which it cancels its tasks. llama.cpp asks whether a client has
    // left only after a second without any result, and results of other requests begin that second anew.
    void leave() noexcept {
        if (waiting_ == nullptr) {
            return;
        }
        try {
            auto error     = std::make_unique<server_task_result_error>();
            error->id      = task_;
            error->err_msg = "the client left";
            waiting_->queue_results.send(std::move(error));
        } catch (const std::bad_alloc &) { // it is noticed later
        }
    }

    HomeProcess                            home_;
    const server_http_context::handler_t & handler_;
    std::shared_ptr<RequestSettings>       settings_;
    std::shared_ptr<Running>               running_;
    std::atomic<bool>                      is_cancelled_{false};
    std::function<bool()>                  stops_;
    server_http_req                        request_;
    std::mutex                             waiting_lock_;      // of the next two
    server_response_reader *               waiting_ = nullptr; // which this answer's handler waits for
    int                                    task_    = -1;      // one of its tasks
    std::mutex                             lock_;              // of what follows
    server_http_res_ptr                    response_;
    bool                                   has_more_ = true;
};

} // namespace

server_http_res_ptr error_response(const char * message, error_type type) {
    auto response    = std::make_unique<server_http_res>();
    auto error       = format_error_response(message, type);
    response->status = json_value(error, "code", 500);
    response->data   = safe_json_to_str({{"error", error}});
    return response;
}

std::unique_ptr<LoopResponse> make_response(const LoopRequest & request, const server_http_context::handler_t & handler,
                                            std::shared_ptr<RequestSettings> settings,
                                            std::shared_ptr<Running>         running) {
    return std::make_unique<Response>(request, handler, std::move(settings), std::move(running));
}

} // namespace spac

// The linker calls these in place of the reader's functions.
using Results = server_response_reader::batch_response;

extern "C" {
Results __real__ZN22server_response_reader12wait_for_allERKSt8functionIFbvEE(server_response_reader *      reader,
                                                                             const std::function<bool()> & stops);
Results __wrap__ZN22server_response_reader12wait_for_allERKSt8functionIFbvEE(server_response_reader *      reader,
                                                                             const std::function<bool()> & stops) {
    const auto wait = [&] {
        return __real__ZN22server_response_reader12wait_for_allERKSt8functionIFbvEE(reader, stops);
    };
    return spac::running_here != nullptr ? spac::running_here->wait(*reader, wait) : wait();
}

server_task_result_ptr __real__ZN22server_response_reader4nextERKSt8functionIFbvEE(server_response_reader *      reader,
                                                                                   const std::function<bool()> & stops);
server_task_result_ptr
__wrap__ZN22server_response_reader4nextERKSt8functionIFbvEE(server_response_reader *      reader,
                                                            const std::function<bool()> & stops) {
    const auto wait = [&] { return __real__ZN22server_response_reader4nextERKSt8functionIFbvEE(reader, stops); };
    return spac::running_here != nullptr ? spac::running_here->wait(*reader, wait) : wait();
}
}
