#include "hooks/own_text.h"

#include "backend/experts/experts.h"
#include "core/error.h"
#include "core/home_process.h"
#include "hooks/own_requests.h"

#include "mtmd-helper.h"
#include "server-context.h"
#include "session/llama_models.h"

#include <mutex>
#include <utility>
#include <vector>

namespace spac {

namespace {

// A text and what it needs until its end. It may outlive the server.
class Text : public LoopText, Cancelled {
  public:
    Text(TextRequest request, const TextsOfLoop & of)
        : request_(std::move(request)), own_(OwnRequest::begin(request_.join, of.target)), of_(of) {
        of_.running->add(*this);
    }
    ~Text() override {
        if (home_.is_here()) {
            of_.running->remove(*this);
        }
        cancel();
    }

    uint64_t number() const override { return own_->number(); }

    void begin() override {
        home_.check("the engine");
        const AbortGuard      guard;
        const std::lock_guard hold(lock_);
        if (is_cancelled_ || of_.running->stops()) {
            own_->stop();
            return;
        }
        reader_.reset(new server_response_reader(of_.context->get_response_reader()));
        server_task task(SERVER_TASK_TYPE_COMPLETION);
        task.id                     = reader_->get_new_id();
        task.tokens                 = prompt();
        task.params.stream          = true;
        task.params.return_progress = true;
        task.params.n_predict       = request_.limit;
        task.params.sampling        = own_->params();
        task.params.speculative     = of_.params->speculative;
        task.params.lora            = of_.settings->adapter_scales();
        own_->await(&reader_->queue_results, task.id);
        reader_->post_task(std::move(task));
    }
    TextNews next() override {
        home_.check("the engine");
        return own_->next();
    }
    void cancel() noexcept override {
        if (!home_.is_here()) { // a child of the process has none of the loop's threads
            static_cast<void>(reader_.release());
            return;
        }
        own_->stop();
        const std::lock_guard hold(lock_);
        is_cancelled_ = true;
        if (reader_ != nullptr) {
            reader_->received_count = own_->is_over() ? 1 : 0; // it posts what ends a task that runs
            reader_.reset();
        }
        own_->await(nullptr, -1); // another loop may have its results at the same place
    }

  private:
    void cancel_now() noexcept override { cancel(); }

    // Returns the tokens of the prompt. Throws InputError for images that cannot be read.
    server_tokens prompt() const {
        if (request_.images.empty() && request_.text.empty()) {
            return {request_.tokens, of_.projector != nullptr};
        }
        const RequestSettings::Reading in_loop(*of_.settings);
        std::vector<raw_buffer>        files;
        for (const auto & each : request_.images) {
            files.emplace_back(each.begin(), each.end());
        }
        try {
            return process_mtmd_prompt(of_.projector.get(), request_.text, files, mtmd_helper_init_opt_default());
        } catch (const std::runtime_error & error) {
            throw InputError(error.what());
        }
    }

    HomeProcess                             home_;
    TextRequest                             request_;
    std::shared_ptr<OwnRequest>             own_;
    TextsOfLoop                             of_;
    std::mutex                              lock_; // of what follows
    std::unique_ptr<server_response_reader> reader_;
    bool                                    is_cancelled_ = false;
};

} // namespace

std::unique_ptr<LoopText> make_text(TextRequest request, const TextsOfLoop & of) {
    return std::make_unique<Text>(std::move(request), of);
}

} // namespace spac
