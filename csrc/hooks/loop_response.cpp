#include "hooks/loop_response.h"

#include "core/error.h"
#include "core/home_process.h"

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
    void cancel() noexcept override { is_cancelled_.store(true); }
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

    HomeProcess                            home_;
    const server_http_context::handler_t & handler_;
    std::shared_ptr<RequestSettings>       settings_;
    std::shared_ptr<Running>               running_;
    std::atomic<bool>                      is_cancelled_{false};
    std::function<bool()>                  stops_;
    server_http_req                        request_;
    std::mutex                             lock_; // of what follows
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
