// Bindings of a model's experts: layers, slots, plan, demand.
#include "backend/experts/experts.h"
#include "bindings/bindings.h"
#include "core/error.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <variant>

namespace py = pybind11;
using spac::Experts;
using spac::bindings::int32_data;
using spac::bindings::int32_view;

namespace {

// Returns the counters by their names, and where there are several devices, those of each behind its name and a point.
py::dict stats_dict(const spac::ExpertStats & stats, const std::vector<spac::ExpertDevice> & devices) {
    py::dict result;
#define SPAC_STAT(name) result[#name] = stats.name
    SPAC_STAT(activations);
    SPAC_STAT(activations_hit);
    SPAC_STAT(distinct);
    SPAC_STAT(distinct_hit);
    SPAC_STAT(blocks);
    SPAC_STAT(blocks_device);
    SPAC_STAT(blocks_host);
    SPAC_STAT(uploads);
    SPAC_STAT(upload_bytes);
    SPAC_STAT(upload_failures);
    SPAC_STAT(upload_ns);
    SPAC_STAT(uploads_wasted);
    SPAC_STAT(evictions);
    SPAC_STAT(host_waits);
    SPAC_STAT(host_wait_ns);
    SPAC_STAT(host_compute_ns);
    SPAC_STAT(download_bytes);
    SPAC_STAT(join_bytes);
    SPAC_STAT(blocks_streamed);
    SPAC_STAT(stream_bytes);
    SPAC_STAT(stream_slot_bytes);
    SPAC_STAT(stream_ring_bytes);
    SPAC_STAT(foreseen);
    SPAC_STAT(foreseen_right);
    SPAC_STAT(graphs_prepared);
    SPAC_STAT(queue_ns);
    SPAC_STAT(ahead_ns);
    SPAC_STAT(early_bytes);
    SPAC_STAT(early);
    SPAC_STAT(early_right);
    SPAC_STAT(misses_cpu);
    SPAC_STAT(misses_loaded);
    SPAC_STAT(activations_loaded);
    SPAC_STAT(load_bytes);
    SPAC_STAT(disk_bytes);
#undef SPAC_STAT
    for (size_t i = 0; devices.size() > 1 && i < devices.size(); ++i) {
        const auto & device = devices[i];
        const auto add = [&](const char * name, uint64_t value) { result[py::str(device.name + "." + name)] = value; };
        add("activations", device.activations);
        add("activations_hit", device.activations_hit);
        add("uploads", device.uploads);
        add("upload_bytes", device.upload_bytes);
        add("upload_failures", device.upload_failures);
        add("evictions", device.evictions);
    }
    return result;
}

// Bytes of every device, or of each device.
using Margins = std::variant<size_t, std::vector<size_t>>;

std::vector<size_t> list_of(const Margins & margins) {
    const auto * const one = std::get_if<size_t>(&margins);
    return one != nullptr ? std::vector<size_t>{*one} : std::get<std::vector<size_t>>(margins);
}

void attach_slots(Experts & experts, int n_slots, const Margins & margins) {
    experts.home.check("the handle on the experts");
    experts.attach_slots(n_slots, list_of(margins));
}

int slots_that_fit(const Experts & experts, const Margins & margins) {
    experts.home.check("the handle on the experts");
    return experts.slots_that_fit(list_of(margins));
}

std::vector<spac::LayerInfo> layers(const Experts & experts) {
    experts.home.check("the handle on the experts");
    std::vector<spac::LayerInfo> result;
    for (int il = 0; il < experts.n_layer(); ++il) {
        result.push_back(experts.layer(il));
    }
    return result;
}

// Calls a method of Experts without the GIL, and throws in a child process. The method may wait for a lock that a
// computing thread holds, and that thread may ask for the GIL meanwhile, to see signals. So no method of Experts is
// called with the GIL held.
template <typename Call> auto without_gil(const Experts & experts, const Call & call) {
    experts.home.check("the handle on the experts");
    const py::gil_scoped_release release;
    return call();
}

void submit(Experts & experts, const py::object & priority, const py::object & threshold) {
    experts.home.check("the handle on the experts");
    const auto   n_layer  = experts.n_layer();
    const auto   n_expert = experts.n_expert();
    const auto * p        = int32_data(priority, "priority", {n_layer, n_expert});
    const auto * t        = int32_data(threshold, "threshold", {n_layer});

    const py::gil_scoped_release release;
    experts.submit(p, t);
}

py::array_t<int32_t> residency(const Experts & experts) {
    py::array_t<int32_t> slot_of({experts.n_layer(), experts.n_expert()});
    int32_t * const      data = slot_of.mutable_data();
    without_gil(experts, [&] { experts.residency(data); });
    return slot_of;
}

py::array_t<int32_t> routes(const Experts & experts) {
    auto ids                      = std::make_shared<std::vector<int32_t>>();
    const auto [n_tokens, n_used] = without_gil(experts, [&] { return experts.routes(*ids); });
    return int32_view(std::move(ids), {experts.n_layer(), n_tokens, n_used});
}

py::tuple take_demand(Experts & experts) {
    py::array_t<int32_t> demand({experts.n_layer(), experts.n_expert()});
    int32_t * const      data    = demand.mutable_data();
    const int            n_steps = without_gil(experts, [&] { return experts.take_demand(data); });
    return py::make_tuple(demand, n_steps);
}

py::array_t<spac::LayerCost> take_layer_costs(Experts & experts) {
    py::array_t<spac::LayerCost> costs(experts.n_layer());
    auto * const                 data = costs.mutable_data();
    without_gil(experts, [&] { experts.take_layer_costs(data); });
    return costs;
}

void set_miss(Experts & experts, const std::string & how, bool most_recent) {
    constexpr const char * words[] = {"cpu", "load"};
    const auto             found   = std::find(std::begin(words), std::end(words), how);
    if (found == std::end(words)) {
        throw spac::InputError("misses are computed by 'cpu' or 'load', not '" + how + "'");
    }
    without_gil(experts, [&] { experts.set_miss(static_cast<spac::Miss>(found - std::begin(words)), most_recent); });
}

// Returns a function that calls the method, and that throws in a child process.
template <typename Result, typename... Args> auto at_home(Result (Experts::*method)(Args...)) {
    return [method](Experts & experts, Args... args) {
        experts.home.check("the handle on the experts");
        return (experts.*method)(args...);
    };
}
template <typename Result, typename... Args> auto at_home(Result (Experts::*method)(Args...) const) {
    return [method](const Experts & experts, Args... args) {
        experts.home.check("the handle on the experts");
        return (experts.*method)(args...);
    };
}

// A LoadScope that lives from __enter__ to __exit__. The handle on the experts stays valid afterwards.
struct PyLoadScope {
    bool                           paged = false;
    std::optional<spac::LoadScope> scope;
    std::shared_ptr<Experts>       experts;

    void enter() {
        if (scope) {
            throw spac::InputError("the LoadScope is entered already: use one for each model");
        }
        scope.emplace(paged);
    }
    void exit() {
        experts = get();
        scope.reset();
    }
    std::shared_ptr<Experts> get() const { return scope ? scope->experts() : experts; }
};

void bind_infos(py::module_ & m) {
    using spac::LayerInfo;
    py::class_<LayerInfo>(m, "LayerInfo", "One MoE layer, in the order in which layers run.")
        .def_readonly("name", &LayerInfo::name)
        .def_readonly("n_expert", &LayerInfo::n_expert)
        .def_readonly("n_used", &LayerInfo::n_used)
        .def_readonly("expert_bytes", &LayerInfo::expert_bytes)
        .def_readonly("pool", &LayerInfo::pool)
        .def_readonly("device", &LayerInfo::device);
    using spac::HostBytes;
    py::class_<HostBytes>(m, "HostBytes")
        .def_readonly("pinned", &HostBytes::pinned)
        .def_readonly("pageable", &HostBytes::pageable)
        .def_property_readonly("why", [](const HostBytes & found) {
            static constexpr const char * words[] = {"", "off", "limit", "refused"};
            return words[static_cast<int>(found.why)];
        });
    using spac::SlotStats;
    py::class_<SlotStats>(m, "SlotStats")
        .def_readonly("n_slots", &SlotStats::n_slots)
        .def_readonly("n_resident", &SlotStats::n_resident)
        .def_readonly("bytes", &SlotStats::bytes);
    using spac::ExpertDevice;
    py::class_<ExpertDevice>(m, "ExpertDevice",
                             "One device's part of a model: the layers that it computes, and their slots.")
        .def_readonly("name", &ExpertDevice::name)
        .def_readonly("n_layer", &ExpertDevice::n_layer)
        .def_readonly("n_experts", &ExpertDevice::n_experts)
        .def_readonly("slots", &ExpertDevice::slots)
        .def_readonly("activations", &ExpertDevice::activations)
        .def_readonly("activations_hit", &ExpertDevice::activations_hit)
        .def_readonly("uploads", &ExpertDevice::uploads)
        .def_readonly("upload_bytes", &ExpertDevice::upload_bytes)
        .def_readonly("upload_failures", &ExpertDevice::upload_failures)
        .def_readonly("upload_ns", &ExpertDevice::upload_ns)
        .def_readonly("evictions", &ExpertDevice::evictions);
}

} // namespace

void bind_experts(py::module_ & m) {
    bind_infos(m);
    using Release = py::call_guard<py::gil_scoped_release>;
    py::class_<Experts, std::shared_ptr<Experts>>(m, "Experts", "The experts of one loaded model.")
        .def_property_readonly("n_layer", py::cpp_function(at_home(&Experts::n_layer), Release()))
        .def_property_readonly("n_expert", py::cpp_function(at_home(&Experts::n_expert), Release()))
        .def_property_readonly("layers", py::cpp_function(&layers, Release()))
        .def_property_readonly("devices", py::cpp_function(at_home(&Experts::devices), Release()))
        .def("attach_slots", &attach_slots, py::arg("n_slots"), py::arg("margin_bytes") = 0, Release())
        .def("slots_that_fit", &slots_that_fit, py::arg("margin_bytes") = 0, Release())
        .def_property_readonly("slots", py::cpp_function(at_home(&Experts::slots), Release()))
        .def_property_readonly("pool_slots", py::cpp_function(at_home(&Experts::pool_slots), Release()))
        .def_property_readonly("host_memory", py::cpp_function(at_home(&Experts::host_memory), Release()))
        .def_property_readonly("host_bytes", py::cpp_function(at_home(&Experts::host_bytes), Release()))
        .def("submit", &submit, py::arg("priority"), py::arg("threshold"))
        .def("settle", at_home(&Experts::settle), py::arg("timeout_s"), Release())
        .def("residency", &residency)
        .def("attach_draft_copies", at_home(&Experts::attach_draft_copies), py::arg("type"), py::arg("n_threads"),
             Release())
        .def("draft_copy_bytes", at_home(&Experts::draft_copy_bytes), py::arg("type"), Release())
        .def_property_readonly("draft_bytes", py::cpp_function(at_home(&Experts::draft_bytes), Release()))
        .def("set_counting", at_home(&Experts::set_counting), py::arg("counting"), Release())
        .def("take_demand", &take_demand)
        .def("routes", &routes)
        .def("take_layer_costs", &take_layer_costs)
        .def_property_readonly("trace", [](const Experts & experts) { return experts.trace(); })
        .def("set_step_tokens", at_home(&Experts::set_step_tokens), py::arg("n_max"), Release())
        .def("set_lookahead", at_home(&Experts::set_lookahead), py::arg("n_layers"), Release())
        .def("set_rehearsing", at_home(&Experts::set_rehearsing), py::arg("on"), Release())
        .def("set_early_rows", at_home(&Experts::set_early_rows), py::arg("on"), Release())
        .def("set_tail_tokens", at_home(&Experts::set_tail_tokens), py::arg("n_tokens"), Release())
        .def("set_stream_tokens", at_home(&Experts::set_stream_tokens), py::arg("n_min"), Release())
        .def("set_staged_tokens", at_home(&Experts::set_staged_tokens), py::arg("n_most"), Release())
        .def("set_miss", &set_miss, py::arg("how"), py::arg("most_recent") = false)
        .def("stream_bytes", at_home(&Experts::stream_bytes), Release())
        .def_property_readonly("stats", [](const Experts & experts) {
            const auto [stats, devices] =
                without_gil(experts, [&] { return std::make_pair(experts.stats(), experts.devices()); });
            return stats_dict(stats, devices);
        });

    py::class_<PyLoadScope>(m, "LoadScope",
                            "A scope that collects the experts of models loaded in it, on this thread, in `experts`.")
        .def(py::init([](bool paged) {
                 auto made   = std::make_unique<PyLoadScope>();
                 made->paged = paged;
                 return made;
             }),
             py::arg("paged") = false)
        .def("__enter__",
             [](py::object self) {
                 self.cast<PyLoadScope &>().enter();
                 return self;
             })
        .def("__exit__", [](PyLoadScope & self, const py::args &) { self.exit(); })
        .def_property_readonly("experts", &PyLoadScope::get);
}
