// Bindings of the CPU's kernels (csrc/kernels): their list, the time that each way takes, and the way in use.
#include "bindings/bindings.h"
#include "kernels/repack_times.h"
#include "kernels/rows.h"
#include "kernels/thread_times.h"
#include "kernels/way_times.h"

#include <algorithm>
#include <iterator>

#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using namespace spac::kernels;

constexpr const char * way_names[n_ways] = {"ggml", "256", "512"};

int checked_type(const std::string & name) {
    const int type = type_named(name);
    if (type < 0) {
        throw spac::InputError(name + ": no type that this build has CPU kernels for");
    }
    return type;
}

Way checked_way(const std::string & name) {
    for (size_t i = 0; i < n_ways; i++) {
        if (name == way_names[i]) {
            return static_cast<Way>(i);
        }
    }
    throw spac::InputError(name + ": no way to compute; expected ggml, 256 or 512");
}

std::vector<std::string> chosen_ways(const std::string & type) {
    std::vector<std::string> names;
    for (const Way way : ways(checked_type(type))) {
        names.emplace_back(way_names[static_cast<size_t>(way)]);
    }
    return names;
}

void choose_ways(const std::string & type, const std::vector<std::string> & names, const std::vector<bool> & dense) {
    Ways      chosen;
    DenseRows of_dense = {};
    for (const size_t given : {names.size(), dense.empty() ? chosen.size() : dense.size()}) {
        if (given != chosen.size()) {
            throw spac::InputError(std::to_string(given) + " ways, expected " + std::to_string(chosen.size()));
        }
    }
    std::copy(dense.begin(), dense.end(), of_dense.begin());
    for (size_t i = 0; i < chosen.size(); i++) {
        chosen[i] = checked_way(names[i]);
    }
    choose(checked_type(type), chosen, of_dense);
}

void check_threads(int threads) {
    if (threads < 1) {
        throw spac::InputError(std::to_string(threads) + " threads, expected 1 or more");
    }
}

// Runs a measurement without the GIL.
template <typename Function> auto measured_unlocked(const Function & measure) {
    const py::gil_scoped_release others_run;
    return measure();
}

py::dict way_dict(const WayTimes & found) {
    py::dict by_way;
    for (size_t way = 0; way < n_ways; way++) {
        std::vector<double> of_rows;
        for (const auto & times : found.ways) {
            of_rows.push_back(times[way]);
        }
        if (of_rows[0] > 0) {
            by_way[way_names[way]] = of_rows;
        }
    }
    if (found.dense[1] > 0) {
        by_way["dense"] = found.dense;
    }
    return by_way;
}

std::vector<bool> chosen_dense(const std::string & type) {
    std::vector<bool> of_rows;
    for (int n = 1; n <= max_inputs; n++) {
        of_rows.push_back(computes_dense(checked_type(type), n));
    }
    return of_rows;
}

py::dict form_dict(const FormTimes & found) {
    py::dict by_form;
    by_form["plain"] = found.plain;
    if (found.can_repack) {
        by_form["repacked"] = found.repacked;
    }
    return by_form;
}

int checked_quantized(const std::string & name) {
    const int type = quantized_type(name);
    if (type < 0) {
        throw spac::InputError(name + ": no quantized type that the CPU computes with");
    }
    return type;
}

// Measures types with this many threads. Returns the results by the types' names, and the share of the time for which
// the threads ran.
template <typename Check, typename Measure, typename Describe>
py::tuple times_by_type(const std::vector<std::string> & names, int threads, const Check & check,
                        const Measure & measure, const Describe & describe) {
    std::vector<int> types;
    for (const std::string & name : names) {
        types.push_back(check(name));
    }
    check_threads(threads);
    const auto measured = measured_unlocked([&] { return measure(types); });
    py::dict   by_type;
    for (size_t i = 0; i < names.size(); i++) {
        by_type[py::str(names[i])] = describe(measured.times[i]);
    }
    return py::make_tuple(by_type, measured.running);
}

py::tuple times(const std::vector<std::string> & names, int threads, double seconds) {
    const auto measure = [&](const std::vector<int> & types) { return time_ways(types, threads, seconds); };
    return times_by_type(names, threads, checked_type, measure, way_dict);
}

size_t bytes_of_trial(const std::string & name) { return trial_bytes(checked_type(name)); }

py::tuple repack_times(const std::vector<std::string> & names, int threads, double seconds) {
    const auto measure = [&](const std::vector<int> & types) { return time_forms(types, threads, seconds); };
    return times_by_type(names, threads, checked_quantized, measure, form_dict);
}

py::tuple thread_times(const std::string & name, const std::vector<int> & threads, double seconds) {
    const int type = checked_quantized(name);
    std::for_each(threads.begin(), threads.end(), check_threads);
    const auto measured = measured_unlocked([&] { return time_threads(type, threads, seconds); });
    return py::make_tuple(measured.seconds, measured.running);
}

std::vector<std::string> repackable(const std::vector<std::string> & types) {
    std::vector<std::string> found;
    for (const std::string & name : types) {
        const int type = quantized_type(name);
        if (type >= 0 && can_repack(type)) {
            found.push_back(name);
        }
    }
    return found;
}

std::vector<std::string> quantized(const std::vector<std::string> & types) {
    std::vector<std::string> found;
    std::copy_if(types.begin(), types.end(), std::back_inserter(found),
                 [](const std::string & name) { return quantized_type(name) >= 0; });
    return found;
}

} // namespace

void bind_kernels(py::module_ & m) {
    m.def("cpu_kernels", &kernel_names, "Return the types of weights for which this build has kernels (csrc/kernels).");
    m.def("trusted_cpu_kernels", &trusted_kernel_names,
          "Return those of `cpu_kernels` whose results are ggml's on this machine, bit for bit. These are used.");
    m.def("cpu_kernels_enabled", &enabled, "Return True if the CPU computes with spac's kernels.");
    m.def("set_cpu_kernels", &enable, py::arg("on"),
          "Choose if the CPU computes with spac's kernels or with ggml's own, for the whole process.");
    m.def("time_cpu_kernels", &times, py::arg("types"), py::arg("threads"), py::arg("seconds"),
          "Measure the ways to compute with weights of these types.");
    m.def("cpu_kernels_trial_bytes", &bytes_of_trial, py::arg("type"),
          "Return the bytes of weights of this type that a thread multiplies in a time of `time_cpu_kernels`.");
    m.def("choose_cpu_kernels", &choose_ways, py::arg("type"), py::arg("ways"), py::arg("dense") = std::vector<bool>{},
          "Fix the way to compute for 1 to 8 rows of input, for the whole process. `dense` has the numbers of rows for "
          "which it also computes dense matrices where llama.cpp has other kernels. An empty list means none.");
    m.def("chosen_dense_cpu_kernels", &chosen_dense, py::arg("type"),
          "Return for 1 to 8 rows of input if the chosen ways compute dense matrices.");
    m.def("chosen_cpu_kernels", &chosen_ways, py::arg("type"), "Return the way to compute for 1 to 8 rows of input.");
    m.def("repackable_cpu_types", &repackable, py::arg("types"),
          "Return those of the types for which llama.cpp has repacked kernels on this CPU.");
    m.def("quantized_cpu_types", &quantized, py::arg("types"),
          "Return those of the types that time_repacking can measure.");
    m.def("time_repacking", &repack_times, py::arg("types"), py::arg("threads"), py::arg("seconds"),
          "Measure plain and repacked weights of these types.");
    m.def("time_threads", &thread_times, py::arg("type"), py::arg("threads"), py::arg("seconds"),
          "Measure products of one token with experts of this type, for each number of threads.");
}
