// Bindings of the steps of a loop.
#include "bindings/bindings.h"
#include "bindings/loop_arguments.h"
#include "session/parallel.h"

#include <pybind11/stl.h>

namespace py = pybind11;
using spac::ParallelStep;
using spac::SequenceStep;

namespace {

py::object probabilities(const std::optional<spac::TokenProbabilities> & of) {
    if (!of) {
        return py::none();
    }
    const auto &                found = *of;
    const spac::bindings::Shape shape = {static_cast<py::ssize_t>(found.chosen.size()), found.n_top};
    return py::make_tuple(spac::bindings::copy_of(found.chosen), py::array_t<int32_t>(shape, found.top_ids.data()),
                          py::array_t<float>(shape, found.top.data()));
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
    spac::bindings::bind_events(m);
    py::class_<SequenceStep>(m, "SequenceStep", "The result of one step for one of its sequences.")
        .def_readonly("id", &SequenceStep::id)
        .def_property_readonly("tokens", [](const SequenceStep & self) { return spac::bindings::copy_of(self.tokens); })
        .def_readonly("n_drafted", &SequenceStep::n_drafted)
        .def_readonly("n_accepted", &SequenceStep::n_accepted)
        .def_readonly("n_steps", &SequenceStep::n_steps)
        .def_readonly("draft_ns", &SequenceStep::draft_ns)
        .def_readonly("verify_ns", &SequenceStep::verify_ns)
        .def_readonly("sample_ns", &SequenceStep::sample_ns)
        .def_property_readonly("seconds", [](const SequenceStep & self) { return static_cast<double>(self.ns) / 1e9; })
        .def_property_readonly("reason", [](const SequenceStep & self) { return self.is_end ? "stop" : ""; })
        .def_property_readonly("probabilities",
                               [](const SequenceStep & self) { return probabilities(self.probabilities); })
        .def_property_readonly("scored", [](const SequenceStep & self) { return probabilities(self.scored); })
        .def_property_readonly("experts", &experts);
    py::class_<ParallelStep>(m, "ParallelStep", "The result of one step of several sequences.")
        .def_readonly("batch", &ParallelStep::batch)
        .def_readonly("sequences", &ParallelStep::sequences)
        .def_readonly("n_prompt", &ParallelStep::n_prompt)
        .def_readonly("prefill_ns", &ParallelStep::prefill_ns)
        .def_readonly("verified", &ParallelStep::verified);
}
