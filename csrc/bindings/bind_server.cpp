// Bindings of llama.cpp's server_context. Its calls run without the GIL, and its events with it.
#include "bindings/bindings.h"
#include "bindings/loop_arguments.h"
#include "core/home_process.h"
#include "hooks/server_loop.h"
#include "session/projector.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace py = pybind11;
using spac::LoopResponse;
using spac::LoopText;
using spac::ServerLoop;

namespace {

// Returns the next part of a stream, or None at its end.
py::object next_part(LoopResponse & self) {
    std::string part;
    {
        const py::gil_scoped_release release;
        while (part.empty() && self.next(part)) {
        }
    }
    return part.empty() ? py::object(py::none()) : py::object(py::bytes(part));
}

// Keeps Python's state of this thread while `run` works. Without it, each call of a listener would make one and free
// it, which maps memory and unmaps it.
void with_thread_state(const std::function<void()> & run) {
    const py::gil_scoped_acquire acquire;
    const py::gil_scoped_release release;
    run();
}

class PyServerLoop {
  public:
    PyServerLoop(const spac::LoopConfig & config, py::object owner) : owner_(std::move(owner)) {
        const py::gil_scoped_release release;
        loop_ = std::make_unique<ServerLoop>(config);
    }
    ~PyServerLoop() { close(); }

    std::unique_ptr<LoopResponse> begin(const std::string & route, const py::bytes & body,
                                        const std::map<std::string, std::string> & params,
                                        const std::map<std::string, std::string> & headers) {
        return get().begin({route, std::string(body), params, headers});
    }

    std::unique_ptr<LoopText> generate(const py::array_t<int32_t> & tokens, const spac::ImagePrompt * images, int limit,
                                       size_t n_unseen, int n_top, const std::vector<int32_t> & scored,
                                       const py::kwargs & sampling) {
        spac::TextRequest request;
        request.tokens = {tokens.data(), tokens.data() + tokens.size()};
        if (images != nullptr) {
            request.text   = images->text;
            request.images = images->files;
        }
        request.limit = limit;
        request.join  = {spac::bindings::sampling_config(sampling), n_unseen, n_top, scored};
        return get().generate(std::move(request));
    }

    // Sets the callback of an event of Listeners or LoopListeners. None removes it.
    void on(const std::string & event, const py::object & callback) {
        spac::bindings::check_callback(event, callback);
        callbacks_[event] = callback;
        if (callback.is_none()) {
            callbacks_.erase(event);
        }
        get().set_listeners(spac::bindings::listeners(callbacks_, keeps_draft_routes_), loop_listeners());
    }

    void keep_draft_routes(bool keeps) {
        get().set_listeners(spac::bindings::listeners(callbacks_, keeps), loop_listeners());
        keeps_draft_routes_ = keeps;
    }

    // A child of the process has none of the loop's threads, so it cannot end the loop.
    void close() {
        if (!home_.is_here()) {
            static_cast<void>(loop_.release());
        }
        const py::gil_scoped_release release;
        loop_.reset();
    }

  private:
    ServerLoop & get() const {
        if (loop_ == nullptr) {
            throw spac::InputError("the engine is closed");
        }
        home_.check("the engine");
        return *loop_;
    }

    // Returns a function that calls a callback with the GIL, or an empty one.
    template <typename Result, typename... Arguments>
    std::function<Result(Arguments...)> calling(const char * event) const {
        const auto found = callbacks_.find(event);
        if (found == callbacks_.end()) {
            return {};
        }
        return [callback = py::handle(found->second)](Arguments... arguments) {
            const py::gil_scoped_acquire acquire;
            return callback(arguments...).template cast<Result>();
        };
    }

    spac::LoopListeners loop_listeners() const {
        spac::LoopListeners more;
        more.draft_length = calling<int, int, int>("draft_length");
        more.text_begin   = calling<void, uint64_t>("text_begin");
        more.memory_full  = calling<bool>("memory_full");
        more.step_end     = calling<void, const spac::ParallelStep &, double>("step_end");
        more.together     = [](const std::function<void()> & listeners) {
            const py::gil_scoped_acquire acquire;
            listeners();
        };
        return more;
    }

    spac::HomeProcess           home_;
    py::object                  owner_;
    spac::bindings::Callbacks   callbacks_;
    bool                        keeps_draft_routes_ = false;
    std::unique_ptr<ServerLoop> loop_;
};

} // namespace

void bind_server(py::module_ & m) {
    py::class_<LoopResponse>(m, "LoopResponse", "An answer of llama.cpp's server, or the beginning of a stream.")
        .def_property_readonly("status", &LoopResponse::status)
        .def_property_readonly("content_type", &LoopResponse::content_type)
        .def_property_readonly("body", [](const LoopResponse & self) { return py::bytes(self.body()); })
        .def_property_readonly("headers", &LoopResponse::headers)
        .def_property_readonly("is_stream", &LoopResponse::is_stream)
        .def("run", &LoopResponse::run, py::call_guard<py::gil_scoped_release>())
        .def("next", &next_part)
        .def("cancel", &LoopResponse::cancel)
        .def("close", &LoopResponse::close, py::call_guard<py::gil_scoped_release>());
    py::class_<LoopText>(m, "LoopText", "A text that the loop makes for this process.")
        .def_property_readonly("number", &LoopText::number)
        .def("begin", &LoopText::begin, py::call_guard<py::gil_scoped_release>())
        .def("next", &LoopText::next, py::call_guard<py::gil_scoped_release>())
        .def("cancel", &LoopText::cancel, py::call_guard<py::gil_scoped_release>());
    py::class_<spac::TextNews>(m, "TextNews", "Holds what has become of a text since its reader asked.")
        .def_readonly("steps", &spac::TextNews::steps)
        .def_readonly("progress", &spac::TextNews::progress)
        .def_readonly("is_over", &spac::TextNews::is_over)
        .def_readonly("is_stopped", &spac::TextNews::is_stopped);
    py::class_<spac::LoopLock, std::shared_ptr<spac::LoopLock>>(
        m, "LoopLock", "A lock that a ServerLoop holds while it computes. Those who wait for it go first.")
        .def(py::init<>())
        .def_property_readonly("is_mine", &spac::LoopLock::is_mine)
        .def("__enter__", &spac::LoopLock::work, py::call_guard<py::gil_scoped_release>())
        .def("__exit__", [](spac::LoopLock & self, const py::args &) { self.leave(); });
    py::class_<PyServerLoop>(m, "ServerLoop", "llama.cpp's server_context on models that are loaded.")
        .def(py::init([](const std::string & path, const std::string & name, std::uintptr_t target_ctx,
                         std::optional<std::uintptr_t> draft_ctx, std::shared_ptr<spac::Experts> experts,
                         std::shared_ptr<spac::Trace> trace, std::shared_ptr<spac::Experts> draft_experts,
                         std::shared_ptr<spac::LoopLock> lock, const py::object & owner,
                         const std::string & chat_template, const std::string & slot_folder,
                         const std::string & projector_file, std::shared_ptr<spac::Projector> projector,
                         const std::vector<std::tuple<std::string, std::uintptr_t, float>> & adapters, bool reasons,
                         int reasoning_budget, bool prefills, std::map<std::string, std::string> template_variables,
                         const std::vector<std::string> & aliases, const std::string & reasoning_format,
                         const std::string & reasoning_message, bool parses, bool shows_slots, bool is_verbose,
                         bool embeds, int n_slots, const py::kwargs & keywords) {
                 spac::LoopConfig config;
                 config.path               = path;
                 config.name               = name;
                 config.template_text      = chat_template;
                 config.slot_folder        = slot_folder;
                 config.projector          = projector_file;
                 config.session.projector  = std::move(projector);
                 config.reasons            = reasons;
                 config.reasoning_budget   = reasoning_budget;
                 config.prefills           = prefills;
                 config.template_variables = std::move(template_variables);
                 config.aliases            = aliases;
                 config.reasoning_format   = reasoning_format;
                 config.reasoning_message  = reasoning_message;
                 config.parses             = parses;
                 config.shows_slots        = shows_slots;
                 config.embeds             = embeds;
                 config.n_slots            = n_slots;
                 config.is_verbose         = is_verbose;
                 for (const auto & [file, address, scale] : adapters) {
                     config.adapters.push_back({file, reinterpret_cast<void *>(address), scale});
                 }
                 config.session.target_ctx    = reinterpret_cast<void *>(target_ctx);
                 config.session.draft_ctx     = reinterpret_cast<void *>(draft_ctx.value_or(0));
                 config.session.experts       = std::move(experts);
                 config.lock                  = lock != nullptr ? std::move(lock) : config.lock;
                 config.session.trace         = std::move(trace);
                 config.session.draft_experts = std::move(draft_experts);
                 config.around                = &with_thread_state;
                 spac::bindings::apply_keywords(keywords, config.session);
                 if (!embeds) {
                     spac::check_contexts(config.session, n_slots);
                 }
                 return std::make_unique<PyServerLoop>(config, owner);
             }),
             py::arg("path"), py::arg("name"), py::arg("target_ctx"), py::arg("draft_ctx") = py::none(),
             py::arg("experts") = py::none(), py::kw_only(), py::arg("trace"), py::arg("draft_experts") = py::none(),
             py::arg("lock") = py::none(), py::arg("owner") = py::none(), py::arg("chat_template") = "",
             py::arg("slot_folder") = "", py::arg("projector_file") = "", py::arg("projector") = py::none(),
             py::arg("adapters") = py::list(), py::arg("reasons") = true, py::arg("reasoning_budget") = -1,
             py::arg("prefills") = true, py::arg("template_variables") = std::map<std::string, std::string>(),
             py::arg("aliases") = std::vector<std::string>(), py::arg("reasoning_format") = "deepseek",
             py::arg("reasoning_message") = "", py::arg("parses") = true, py::arg("shows_slots") = true,
             py::arg("is_verbose") = false, py::arg("embeds") = false, py::arg("n_slots") = 1)
        .def_static("media_marker", &ServerLoop::media_marker)
        .def_property_readonly_static("routes", [](const py::object &) { return ServerLoop::routes(); })
        .def("begin", &PyServerLoop::begin, py::arg("route"), py::arg("body"),
             py::arg("params")  = std::map<std::string, std::string>(),
             py::arg("headers") = std::map<std::string, std::string>())
        .def("generate", &PyServerLoop::generate, py::arg("tokens"), py::kw_only(), py::arg("images") = py::none(),
             py::arg("limit") = -1, py::arg("n_unseen") = 0, py::arg("n_top") = -1,
             py::arg("scored") = std::vector<int32_t>())
        .def("keep_draft_routes", &PyServerLoop::keep_draft_routes, py::arg("keeps"))
        .def("on", &PyServerLoop::on, py::arg("event"), py::arg("callback"))
        .def("close", &PyServerLoop::close);
}
