// Bindings of the speculative session. Its calls run without the GIL, and its events with it.
#include "bindings/bindings.h"
#include "bindings/session_holder.h"
#include "session/llama_models.h"
#include "session/prompt_graph.h"
#include "session/session.h"

#include <pybind11/stl.h>

#include <optional>

namespace py = pybind11;
using spac::Session;
using spac::Step;
using spac::bindings::context_pointer;
using spac::bindings::SessionHolder;

namespace {

class PySession : public SessionHolder<Session> {
  public:
    PySession(const spac::SessionConfig & config, py::object owner) : SessionHolder(std::move(owner)) {
        if (config.experts != nullptr) {
            config.experts->home.check("the handle on the experts");
        }
        const py::gil_scoped_release release;
        begin(std::make_unique<Session>(config));
    }

    void prefill(const std::vector<int32_t> & tokens, const py::object & progress, size_t n_unseen,
                 std::shared_ptr<const spac::ImagePrompt> images) {
        Session::Progress report;
        if (!progress.is_none()) {
            report = [&progress](int n_done, int n_total) {
                const py::gil_scoped_acquire acquire;
                progress(n_done, n_total);
            };
        }
        const Call                   call(*this);
        const py::gil_scoped_release release;
        call->prefill(tokens.data(), tokens.size(), report, n_unseen, std::move(images));
    }

    void adopt(const std::vector<int32_t> & tokens) {
        const Call                   call(*this);
        const py::gil_scoped_release release;
        call->adopt(tokens.data(), tokens.size());
    }

    void set_sampling(const py::kwargs & keywords) {
        const Call call(*this);
        call->set_sampling(spac::bindings::sampling_config(keywords));
    }

    Step step() {
        const Call                   call(*this);
        const py::gil_scoped_release release;
        return call->step();
    }

    py::tuple probabilities(int n_top) {
        const Call               call(*this);
        spac::TokenProbabilities found;
        {
            const py::gil_scoped_release release;
            found = call->probabilities(n_top);
        }
        return spac::bindings::arrays_of(found);
    }

    void reset() {
        const Call                   call(*this);
        const py::gil_scoped_release release;
        call->reset();
    }
};

// Returns a context that has to be there. Throws InputError.
llama_context * known_context(const py::object & address) {
    auto * const ctx = static_cast<llama_context *>(context_pointer(address, "context"));
    if (ctx == nullptr) {
        throw spac::InputError("the context is None, expected the address of a llama_context");
    }
    return ctx;
}

std::unique_ptr<PySession> make_session(const py::object & target_ctx, const py::object & draft_ctx,
                                        std::shared_ptr<spac::Experts> experts, py::object owner,
                                        std::shared_ptr<spac::Trace>     trace,
                                        std::shared_ptr<spac::Experts>   draft_experts,
                                        std::shared_ptr<spac::Projector> projector, const py::kwargs & keywords) {
    spac::SessionConfig config;
    config.target_ctx = context_pointer(target_ctx, "target_ctx");
    config.draft_ctx  = context_pointer(draft_ctx, "draft_ctx");
    config.experts    = std::move(experts);
    config.trace      = std::move(trace);
    config.projector  = std::move(projector);
    if (draft_experts != nullptr) {
        draft_experts->home.check("the handle on the draft's experts");
    }
    config.draft_experts = std::move(draft_experts);
    spac::bindings::apply_keywords(keywords, config);
    return std::make_unique<PySession>(config, std::move(owner));
}

} // namespace

void bind_session(py::module_ & m) {
    spac::bindings::bind_session_events(m);
    py::class_<PySession>(m, "Session", "One sequence of tokens, drafted and verified.",
                          py::custom_type_setup(&spac::bindings::collectable<PySession>))
        .def(py::init(&make_session), py::arg("target_ctx"), py::arg("draft_ctx") = py::none(),
             py::arg("experts") = py::none(), py::kw_only(), py::arg("owner") = py::none(),
             py::arg("trace") = py::none(), py::arg("draft_experts") = py::none(), py::arg("projector") = py::none())
        .def(
            "prefill",
            [](PySession & self, const py::object & tokens, const py::object & progress, size_t n_unseen,
               std::shared_ptr<spac::ImagePrompt> images) {
                self.prefill(spac::bindings::token_list(tokens, "tokens"), progress, n_unseen, std::move(images));
            },
            py::arg("tokens"), py::arg("progress") = py::none(), py::kw_only(), py::arg("n_unseen") = 0,
            py::arg("images") = py::none())
        .def(
            "adopt",
            [](PySession & self, const py::object & tokens) {
                self.adopt(spac::bindings::token_list(tokens, "tokens"));
            },
            py::arg("tokens"))
        .def("set_sampling", &PySession::set_sampling)
        .def("step", &PySession::step)
        .def_property_readonly("last_step", [](const PySession & self) { return self.get().last_step(); })
        .def("probabilities", &PySession::probabilities, py::arg("n_top"))
        .def("on", &PySession::on, py::arg("event"), py::arg("callback"))
        .def("keep_draft_routes", &PySession::keep_draft_routes, py::arg("keeps"))
        .def("reset", &PySession::reset)
        .def("cancel", [](const PySession & self) { self.get().cancel(); })
        .def("close", &PySession::close)
        .def("__enter__", [](py::object self) { return self; })
        .def("__exit__", [](PySession & self, const py::args &) { self.close(); })
        .def(
            "set_draft_length", [](const PySession & self, int n) { self.get().set_draft_length(n); }, py::arg("n"))
        .def_property_readonly("draft_length", [](const PySession & self) { return self.get().draft_length(); })
        .def_property_readonly("draft_max", [](const PySession & self) { return self.get().draft_max(); })
        .def_property_readonly("n_reused", [](const PySession & self) { return self.get().n_reused(); })
        .def_property_readonly("cached",
                               [](const PySession & self) { return spac::bindings::cached_dict(self.get().cached()); })
        .def_property_readonly("n_past", [](const PySession & self) { return self.get().n_past(); })
        .def_property_readonly("n_ctx", [](const PySession & self) { return self.get().n_ctx(); })
        .def_property_readonly("tokens",
                               [](const PySession & self) { return spac::bindings::copy_of(self.get().tokens()); });

    m.def(
        "vocab_mismatch",
        [](const py::object & target_model, const py::object & draft_model) -> std::optional<py::str> {
            const auto reason = spac::vocab_mismatch(context_pointer(target_model, "target_model"),
                                                     context_pointer(draft_model, "draft_model"));
            return reason ? std::optional(spac::bindings::message(*reason)) : std::nullopt;
        },
        py::arg("target_model"), py::arg("draft_model"),
        "Return the reason why the vocabularies of draft and target differ, in one line; None if they do not.");
    m.def(
        "graph_bytes",
        [](const py::object & context, int n_tokens) {
            auto * const                 ctx = known_context(context);
            const py::gil_scoped_release release;
            return spac::graph_bytes(ctx, n_tokens);
        },
        py::arg("context"), py::arg("n_tokens"),
        "Return the bytes that compute buffers for graphs of this size take of each device, by its name.");
    m.def("draft_types", &spac::draft_types, "Return the names of the draft types that llama.cpp knows.");
}
