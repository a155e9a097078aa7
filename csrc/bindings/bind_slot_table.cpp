// The slot table by itself: for property tests, and for replaying recorded demand without a device.
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/slot_table.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

namespace py = pybind11;
using spac::ExpertId;
using spac::SlotTable;

namespace {

SlotTable make_table(const std::vector<std::pair<int, int>> & layers, const std::vector<int> & pool_slots) {
    std::vector<SlotTable::Layer> list;
    for (const auto & [n_expert, pool] : layers) {
        if (n_expert < 1 || pool < 0 || pool >= static_cast<int>(pool_slots.size())) {
            throw spac::InputError("a layer needs at least one expert and a pool below " +
                                   std::to_string(pool_slots.size()) + ", not (" + std::to_string(n_expert) + ", " +
                                   std::to_string(pool) + ")");
        }
        list.push_back({n_expert, pool});
    }
    return SlotTable(std::move(list), pool_slots);
}

ExpertId checked(const SlotTable & table, int layer, int expert) {
    if (layer < 0 || layer >= table.n_layer() || expert < 0 || expert >= table.n_expert(layer)) {
        throw spac::InputError("no expert (" + std::to_string(layer) + ", " + std::to_string(expert) + ")");
    }
    return {layer, expert};
}

// A list of (kind, load, evict or None), kind one of "use_free", "wait", "use_evicted".
py::list toward(const SlotTable & table, const py::object & priority, const py::object & threshold, int cursor) {
    spac::Plan plan;
    plan.n_layer = table.n_layer();
    for (int il = 0; il < plan.n_layer; ++il) {
        plan.n_expert = std::max(plan.n_expert, table.n_expert(il));
    }
    const auto   n = static_cast<size_t>(plan.n_layer) * static_cast<size_t>(plan.n_expert);
    const auto * p = spac::bindings::int32_data(priority, "priority", {plan.n_layer, plan.n_expert});
    const auto * t = spac::bindings::int32_data(threshold, "threshold", {plan.n_layer});
    plan.priority.assign(p, p + n);
    plan.threshold.assign(t, t + plan.n_layer);
    constexpr const char * kinds[] = {"use_free", "wait", "use_evicted"};
    py::list               result;
    for (const auto & action : table.toward(plan, cursor, {})) {
        py::object victim = py::none();
        if (action.kind == SlotTable::Action::use_evicted) {
            victim = py::make_tuple(action.evict.layer, action.evict.expert);
        }
        result.append(
            py::make_tuple(kinds[action.kind], py::make_tuple(action.load.layer, action.load.expert), victim));
    }
    return result;
}

} // namespace

void bind_slot_table(py::module_ & m) {
    py::class_<SlotTable>(m, "SlotTable", "Which expert is in which slot: bookkeeping without a device.")
        .def(py::init(&make_table), py::arg("layers"), py::arg("pool_slots"),
             "layers: (n_expert, pool) in the order in which they run; pool_slots: slots of every pool.")
        .def_property_readonly("n_held", &SlotTable::n_held)
        .def("n_free", &SlotTable::n_free, py::arg("pool"))
        .def("slot_of", [](const SlotTable & t, int layer, int expert) { return t.slot_of(checked(t, layer, expert)); })
        .def("acquire", [](SlotTable & t, int layer, int expert) { return t.acquire(checked(t, layer, expert)); })
        .def("evict", [](SlotTable & t, int layer, int expert) { return t.evict(checked(t, layer, expert)); })
        .def("release", &SlotTable::release, py::arg("pool"), py::arg("slot"))
        .def("toward", &toward, py::arg("priority"), py::arg("threshold"), py::arg("cursor"))
        .def("check_integrity", &SlotTable::check_integrity);
    m.def(
        "share_out",
        [](int n_slots, const std::vector<std::pair<int, int>> & layers, int n_pool) {
            std::vector<SlotTable::Layer> list;
            for (const auto & [n_expert, pool] : layers) {
                list.push_back({n_expert, pool});
            }
            return spac::share_out(n_slots, list, n_pool);
        },
        py::arg("n_slots"), py::arg("layers"), py::arg("n_pool"), "Slots of every pool, in proportion to its experts.");
}
