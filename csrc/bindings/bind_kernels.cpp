// Bindings of the CPU's kernels (csrc/kernels): their list, the trial of the variants, and the one in use.
#include "bindings/bindings.h"
#include "kernels/rows.h"
#include "kernels/shares.h"

#include <algorithm>

#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using namespace spac::kernels;

constexpr const char * variant_names[n_variants] = {"ggml", "256", "512"};

int checked_type(const std::string & name) {
    const int type = type_named(name);
    if (type < 0) {
        throw spac::InputError(name + ": no type that this build has CPU kernels for");
    }
    return type;
}

Variant checked_variant(const std::string & name) {
    const auto * const found = std::find(std::begin(variant_names), std::end(variant_names), name);
    if (found == std::end(variant_names)) {
        throw spac::InputError(name + ": no variant of kernels; expected ggml, 256 or 512");
    }
    return static_cast<Variant>(found - variant_names);
}

const char * name_of(Variant variant) { return variant_names[static_cast<size_t>(variant)]; }

py::tuple chosen(const std::string & name) {
    const int    type = checked_type(name);
    const Choice now  = choice(type);
    return py::make_tuple(name_of(now.one), name_of(now.several), computes_dense(type, trial_inputs));
}

void choose_by_name(const std::string & type, const std::string & one, const std::string & several, bool dense) {
    choose(checked_type(type), {checked_variant(one), checked_variant(several), dense});
}

py::dict times_dict(const TrialTimes & found) {
    py::dict by_variant;
    for (size_t variant = 0; variant < n_variants; variant++) {
        if (found.one[variant] > 0) {
            by_variant[variant_names[variant]] = py::make_tuple(found.one[variant], found.several[variant]);
        }
    }
    if (found.dense > 0) {
        by_variant["dense"] = py::make_tuple(0.0, found.dense);
    }
    return by_variant;
}

py::tuple trial(const std::vector<std::string> & names, int threads, double seconds) {
    std::vector<int> types;
    std::transform(names.begin(), names.end(), std::back_inserter(types), checked_type);
    if (threads < 1) {
        throw spac::InputError(std::to_string(threads) + " threads, expected 1 or more");
    }
    Measured measured;
    {
        const py::gil_scoped_release others_run;
        measured = run_trial(types, threads, seconds);
    }
    py::dict by_type;
    for (size_t i = 0; i < names.size(); i++) {
        by_type[py::str(names[i])] = times_dict(measured.times[i]);
    }
    return py::make_tuple(by_type, measured.running);
}

} // namespace

void bind_kernels(py::module_ & m) {
    m.def("cpu_kernels", &kernel_names, "Return the types of weights for which this build has kernels (csrc/kernels).");
    m.def("trusted_cpu_kernels", &trusted_kernel_names,
          "Return those of `cpu_kernels` whose results are ggml's on this machine, bit for bit. These are used.");
    m.def("cpu_kernels_enabled", &enabled, "Return True if the CPU computes with spac's kernels.");
    m.def("set_cpu_kernels", &enable, py::arg("on"),
          "Choose if the CPU computes with spac's kernels or with ggml's own, for the whole process.");
    m.def("set_uneven_cores", &spac::kernels::set_uneven_cores, py::arg("on"),
          "Tell before the first product that fast and slow cores compute together.");
    m.def("time_cpu_kernels", &trial, py::arg("types"), py::arg("threads"), py::arg("seconds"),
          "Measure the variants of kernels with weights of these types.");
    m.def(
        "cpu_kernels_trial_bytes", [](const std::string & type) { return trial_bytes(checked_type(type)); },
        py::arg("type"), "Return the bytes of weights that a thread multiplies in a time of `time_cpu_kernels`.");
    m.def("choose_cpu_kernels", &choose_by_name, py::arg("type"), py::arg("one"), py::arg("several"), py::arg("dense"),
          "Set the variants of kernels for one row of input and for several, for the whole process.");
    m.def("chosen_cpu_kernels", &chosen, py::arg("type"),
          "Return the variants for one row of input and for several, and if the latter computes dense matrices.");
}
