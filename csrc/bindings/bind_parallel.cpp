// Bindings of the session of several sequences.
#include "bindings/bindings.h"
#include "bindings/session_holder.h"
#include "session/parallel.h"

#include <pybind11/stl.h>

#include <utility>

namespace py = pybind11;
using spac::ParallelSession;
using spac::ParallelStep;
using spac::SequenceStep;
using spac::bindings::context_pointer;
using spac::bindings::SessionHolder;

namespace {

class PyParallelSession : public SessionHolder<ParallelSession> {
  public:
    PyParallelSession(const spac::SessionConfig & config, bool separate, py::object owner)
        : SessionHolder(std::move(owner)) {
        if (config.experts != nullptr) {
            config.experts->home.check("the handle on the experts");
        }
        const py::gil_scoped_release release;
        begin(std::make_unique<ParallelSession>(config, separate));
    }

    int join(const py::object & tokens, size_t n_unseen, int n_top, const py::kwargs & sampling) {
        spac::JoinConfig config;
        config.sampling                  = spac::bindings::sampling_config(sampling);
        config.n_unseen                  = n_unseen;
        config.n_top                     = n_top;
        const std::vector<int32_t>   all = spac::bindings::token_list(tokens, "tokens");
        const Call                   call(*this);
        const py::gil_scoped_release release;
        return call->join(all.data(), all.size(), config);
    }

    void leave(int id) {
        const Call                   call(*this);
        const py::gil_scoped_release release;
        call->leave(id);
    }

    void replace(size_t place, const py::object & tokens, const py::array_t<uint8_t> & state) {
        const std::vector<int32_t>   all = spac::bindings::token_list(tokens, "tokens");
        const Call                   call(*this);
        const auto *                 bytes   = state.data();
        const auto                   n_bytes = static_cast<size_t>(state.size());
        const py::gil_scoped_release release;
        call->replace(place, all, bytes, n_bytes);
    }

    ParallelStep step(const std::vector<std::pair<int, int>> & turns, int n_prompt, double seconds, int n_most) {
        std::vector<spac::Turn> each;
        for (const auto & [id, draft_length] : turns) {
            each.push_back({id, draft_length});
        }
        const Call                   call(*this);
        const py::gil_scoped_release release;
        return call->step(each, n_prompt, {seconds, n_most});
    }
};

std::unique_ptr<PyParallelSession> make_session(const py::object & target_ctx, const py::object & draft_ctx,
                                                std::shared_ptr<spac::Experts> experts, py::object owner,
                                                std::shared_ptr<spac::Trace> trace, bool separate,
                                                const py::kwargs & keywords) {
    spac::SessionConfig config;
    config.target_ctx = context_pointer(target_ctx, "target_ctx");
    config.draft_ctx  = context_pointer(draft_ctx, "draft_ctx");
    config.experts    = std::move(experts);
    config.trace      = std::move(trace);
    spac::bindings::apply_keywords(keywords, config);
    return std::make_unique<PyParallelSession>(config, separate, std::move(owner));
}

py::object probabilities(const SequenceStep & self) {
    if (!self.probabilities) {
        return py::none();
    }
    return spac::bindings::arrays_of(*self.probabilities);
}

py::dict experts(const SequenceStep & self) {
    const auto & counts = self.experts;
    py::dict     found;
    found["activations"]        = counts.activations;
    found["activations_hit"]    = counts.activations_hit;
    found["activations_loaded"] = counts.activations_loaded;
    found["distinct"]           = counts.distinct;
    found["distinct_hit"]       = counts.distinct_hit;
    found["misses_cpu"]         = counts.misses_cpu;
    found["misses_loaded"]      = counts.misses_loaded;
    return found;
}

} // namespace

void bind_parallel(py::module_ & m) {
    py::class_<SequenceStep>(m, "SequenceStep", "The result of one step for one of its sequences.")
        .def_readonly("id", &SequenceStep::id)
        .def_property_readonly("tokens", [](const SequenceStep & self) { return spac::bindings::copy_of(self.tokens); })
        .def_readonly("n_drafted", &SequenceStep::n_drafted)
        .def_readonly("n_accepted", &SequenceStep::n_accepted)
        .def_readonly("n_past", &SequenceStep::n_past)
        .def_readonly("n_pending", &SequenceStep::n_pending)
        .def_readonly("n_steps", &SequenceStep::n_steps)
        .def_readonly("waits", &SequenceStep::waits)
        .def_readonly("draft_ns", &SequenceStep::draft_ns)
        .def_readonly("verify_ns", &SequenceStep::verify_ns)
        .def_readonly("sample_ns", &SequenceStep::sample_ns)
        .def_property_readonly("seconds", [](const SequenceStep & self) { return static_cast<double>(self.ns) / 1e9; })
        .def_property_readonly("reason", [](const SequenceStep & self) { return to_string(self.reason); })
        .def_property_readonly("probabilities", &probabilities)
        .def_property_readonly("experts", &experts)
        .def("check", [](const SequenceStep & self) {
            if (self.error) {
                std::rethrow_exception(self.error);
            }
        });
    py::class_<ParallelStep>(m, "ParallelStep", "The result of one step of several sequences.")
        .def_readonly("batch", &ParallelStep::batch)
        .def_readonly("sequences", &ParallelStep::sequences)
        .def_readonly("n_prompt", &ParallelStep::n_prompt)
        .def_readonly("prefill_ns", &ParallelStep::prefill_ns)
        .def_readonly("verified", &ParallelStep::verified);
    py::class_<PyParallelSession>(m, "ParallelSession", "Several sequences of tokens, drafted and verified together.",
                                  py::custom_type_setup(&spac::bindings::collectable<PyParallelSession>))
        .def(py::init(&make_session), py::arg("target_ctx"), py::arg("draft_ctx") = py::none(),
             py::arg("experts") = py::none(), py::kw_only(), py::arg("owner") = py::none(),
             py::arg("trace") = py::none(), py::arg("separate") = false)
        .def("join", &PyParallelSession::join, py::arg("tokens"), py::kw_only(), py::arg("n_unseen") = 0,
             py::arg("n_top") = -1)
        .def("leave", &PyParallelSession::leave, py::arg("id"))
        .def("step", &PyParallelSession::step, py::arg("turns"), py::arg("n_prompt"), py::kw_only(),
             py::arg("seconds") = 0.0, py::arg("n_most") = 1)
        .def("hand_over", [](const PyParallelSession & self) { self.get().hand_over(); })
        .def("replace", &PyParallelSession::replace, py::arg("place"), py::arg("tokens"), py::arg("state"))
        .def("held",
             [](const PyParallelSession & self) {
                 py::list all;
                 for (const auto & each : self.get().held()) {
                     all.append(py::make_tuple(each.id, each.parked, spac::bindings::copy_of(each.tokens)));
                 }
                 return all;
             })
        .def("on", &PyParallelSession::on, py::arg("event"), py::arg("callback"))
        .def("keep_draft_routes", &PyParallelSession::keep_draft_routes, py::arg("keeps"))
        .def("cancel", [](const PyParallelSession & self) { self.get().cancel(); })
        .def("close", &PyParallelSession::close)
        .def("__enter__", [](py::object self) { return self; })
        .def("__exit__", [](PyParallelSession & self, const py::args &) { self.close(); })
        .def(
            "n_reused", [](const PyParallelSession & self, int id) { return self.get().n_reused(id); }, py::arg("id"))
        .def(
            "tokens",
            [](const PyParallelSession & self, int id) { return spac::bindings::copy_of(self.get().tokens(id)); },
            py::arg("id"))
        .def_property_readonly("n_sequences", [](const PyParallelSession & self) { return self.get().n_sequences(); })
        .def_property_readonly("n_joined", [](const PyParallelSession & self) { return self.get().n_joined(); })
        .def_property_readonly("n_ctx", [](const PyParallelSession & self) { return self.get().n_ctx(); })
        .def_property_readonly("draft_max", [](const PyParallelSession & self) { return self.get().draft_max(); })
        .def_property_readonly(
            "cached", [](const PyParallelSession & self) { return spac::bindings::cached_dict(self.get().cached()); });
}
