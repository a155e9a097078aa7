// Bindings of the slot table and of the residency steps by themselves. Property tests use them, and so do programs that
// replay recorded demand without a device.
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/pinned_ranges.h"
#include "core/residency.h"
#include "core/slot_table.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>

namespace py = pybind11;
using spac::ExpertId;
using spac::SlotTable;

namespace {

using Layers = std::vector<std::pair<int, int>>;

std::vector<SlotTable::Layer> layer_list(const Layers & layers, size_t n_pool) {
    std::vector<SlotTable::Layer> list;
    for (const auto & [n_expert, pool] : layers) {
        if (n_expert < 1 || pool < 0 || static_cast<size_t>(pool) >= n_pool) {
            throw spac::InputError("a layer needs at least one expert and a pool below " + std::to_string(n_pool) +
                                   ", not (" + std::to_string(n_expert) + ", " + std::to_string(pool) + ")");
        }
        list.push_back({n_expert, pool});
    }
    return list;
}

SlotTable make_table(const Layers & layers, const std::vector<int> & pool_slots) {
    return SlotTable(layer_list(layers, pool_slots.size()), pool_slots);
}

ExpertId checked(const SlotTable & table, int layer, int expert) {
    if (layer < 0 || layer >= table.n_layer() || expert < 0 || expert >= table.n_expert(layer)) {
        throw spac::InputError("no expert (" + std::to_string(layer) + ", " + std::to_string(expert) + ")");
    }
    return {layer, expert};
}

spac::Plan plan_of(const SlotTable & table, const py::object & priority, const py::object & threshold) {
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
    return plan;
}

// A mask that Python holds. Its version stays valid as long as the object lives, as it does for a launch.
struct HeldMask {
    std::shared_ptr<const spac::Mask> mask;
};

// Residency for one thread. It keeps the batches of loads under way for finish(), which ends the oldest first.
class Steps {
  public:
    Steps(const Layers & layers, const std::vector<int> & pool_slots)
        : residency_(layer_list(layers, pool_slots.size()), pool_slots, nullptr) {}

    void submit(const py::object & priority, const py::object & threshold) {
        residency_.submit(plan_of(residency_.table(), priority, threshold));
    }
    // Begins loads, and returns them as a list of (layer, expert, pool, slot).
    py::list begin(int cursor, size_t max_loads, size_t max_evictions) {
        spac::Residency::Retired retired;
        const auto               plan  = residency_.look();
        auto                     loads = residency_.begin(
                                residency_.choose(*plan, cursor, {max_loads, max_evictions}, residency_.foreseen()), retired);
        py::list result = listed(loads);
        if (!loads.empty()) {
            batches_.push_back(std::move(loads));
        }
        return result;
    }
    void finish(bool copied) {
        spac::Residency::Retired retired;
        if (batches_.empty()) {
            throw spac::InputError("no loads were begun");
        }
        residency_.finish(batches_.front(), copied, retired);
        batches_.pop_front();
    }
    // Begins the loads of an execution's misses, and returns them with the mask of the execution.
    py::tuple begin_misses(int layer, const std::vector<int32_t> & missing, const std::vector<int32_t> & used,
                           int cursor, bool most_recent) {
        std::vector<char> is_used(residency_.table().n_expert(checked(residency_.table(), layer, 0).layer));
        for (const int32_t expert : all_checked(layer, used)) {
            is_used[expert] = 1;
        }
        misses_.push_back(residency_.begin_misses(layer, all_checked(layer, missing), is_used, cursor, most_recent));
        return py::make_tuple(listed(misses_.back().loads), HeldMask{misses_.back().mask});
    }
    void finish_misses() {
        spac::Residency::Retired retired;
        if (misses_.empty()) {
            throw spac::InputError("no misses were begun");
        }
        residency_.finish_misses(misses_.front(), retired);
        misses_.pop_front();
    }
    void foresee(int layer, const std::vector<int32_t> & experts) {
        residency_.foresee(layer, all_checked(layer, experts));
    }
    void note_used(int layer, const std::vector<int32_t> & experts) {
        residency_.note_used(layer, all_checked(layer, experts));
    }
    spac::Residency & get() { return residency_; }

  private:
    static py::list listed(const std::vector<spac::Residency::Load> & loads) {
        py::list result;
        for (const auto & load : loads) {
            result.append(py::make_tuple(load.id.layer, load.id.expert, load.pool, load.slot));
        }
        return result;
    }
    const std::vector<int32_t> & all_checked(int layer, const std::vector<int32_t> & experts) {
        for (const int32_t expert : experts) {
            checked(residency_.table(), layer, expert);
        }
        return experts;
    }

    spac::Residency                                residency_;
    std::deque<std::vector<spac::Residency::Load>> batches_;
    std::deque<spac::Residency::Misses>            misses_;
};

// Returns a list of (kind, load, evict or None). The kind is "use_free", "wait" or "use_evicted".
py::list toward(const SlotTable & table, const py::object & priority, const py::object & threshold, int cursor) {
    const spac::Plan       plan    = plan_of(table, priority, threshold);
    constexpr const char * kinds[] = {"use_free", "wait", "use_evicted"};
    py::list               result;
    for (const auto & action : table.toward(plan, cursor, {}, {}, {})) {
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
    py::class_<SlotTable>(m, "SlotTable", "A table of the experts in slots: bookkeeping without a device.")
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
    py::class_<HeldMask>(m, "Mask", "One version of a layer's ids mask; it lives as long as this object.")
        .def_property_readonly("version", [](const HeldMask & held) { return held.mask->version; })
        .def_property_readonly("slot_of", [](const HeldMask & held) { return held.mask->slot_of; });
    py::class_<Steps>(m, "Residency", "Slot table, masks and plan, driven step by step.")
        .def(py::init<const Layers &, const std::vector<int> &>(), py::arg("layers"), py::arg("pool_slots"))
        .def("submit", &Steps::submit, py::arg("priority"), py::arg("threshold"))
        .def("begin", &Steps::begin, py::arg("cursor"), py::arg("max_loads"), py::arg("max_evictions"))
        .def("finish", &Steps::finish, py::arg("copied"))
        .def("begin_misses", &Steps::begin_misses, py::arg("layer"), py::arg("missing"), py::arg("used"),
             py::arg("cursor"), py::arg("most_recent"))
        .def("finish_misses", &Steps::finish_misses)
        .def("foresee", &Steps::foresee, py::arg("layer"), py::arg("experts"))
        .def("note_used", &Steps::note_used, py::arg("layer"), py::arg("experts"))
        .def("mask",
             [](Steps & s, int layer) { return HeldMask{s.get().mask(checked(s.get().table(), layer, 0).layer)}; })
        .def("slot_of", [](Steps & s, int layer,
                           int expert) { return s.get().table().slot_of(checked(s.get().table(), layer, expert)); })
        .def_property_readonly("settled", [](Steps & s) { return s.get().settled(); })
        .def("check_integrity", [](Steps & s) { s.get().check_integrity(); });
    m.def(
        "share_out",
        [](int n_slots, const Layers & layers, int n_pool) {
            return spac::share_out(n_slots, layer_list(layers, static_cast<size_t>(n_pool)), n_pool);
        },
        py::arg("n_slots"), py::arg("layers"), py::arg("n_pool"),
        "Return the slots of every pool, in proportion to its experts.");
    m.def("share_by_room", &spac::share_by_room, py::arg("n_slots"), py::arg("experts"), py::arg("room"),
          "Return the slots of every device, in proportion to its experts as far as it has room.");
    m.def("slots_per_tensor", &spac::slots_per_tensor, py::arg("blocks_per_slot"),
          "Return the most slots of so many blocks that one stacked tensor may have.");
    m.def(
        "most_slots",
        [](const std::vector<int> & limits, const Layers & layers) {
            return spac::most_slots(limits, layer_list(layers, limits.size()));
        },
        py::arg("limits"), py::arg("layers"), "Return the most slots whose shares stay within every pool's limit.");
    m.def(
        "copy_runs",
        [](const std::vector<int32_t> & slot_of, size_t expert_bytes, size_t copy_bytes) {
            std::vector<std::tuple<int, int, int>> runs;
            for (const spac::CopyRun & run : spac::copy_runs(slot_of, expert_bytes, copy_bytes)) {
                runs.emplace_back(run.first, run.count, run.slot);
            }
            return runs;
        },
        py::arg("slot_of"), py::arg("expert_bytes"), py::arg("copy_bytes"),
        "(first, count, slot) of the copies that bring a layer's experts together.");
    using Extents = std::vector<std::pair<uintptr_t, uintptr_t>>;
    m.def(
        "pin_slices",
        [](std::pair<uintptr_t, uintptr_t> mapping, const Extents & weights, size_t page, size_t slice, size_t most) {
            std::vector<spac::Extent> sorted;
            for (const auto & [begin, end] : weights) {
                sorted.push_back({begin, end});
            }
            Extents slices;
            for (const auto & found : spac::pin_slices({mapping.first, mapping.second}, sorted, page, slice, most)) {
                slices.emplace_back(found.begin, found.end);
            }
            return slices;
        },
        py::arg("mapping"), py::arg("weights"), py::arg("page"), py::arg("slice"), py::arg("most"),
        "(begin, end) of the slices in which a mapping is registered.");
    m.def(
        "pinned_slices",
        [](const Extents & pinned, uintptr_t begin, size_t bytes) {
            spac::PinnedRanges ranges;
            for (const auto & [from, to] : pinned) {
                ranges.add(reinterpret_cast<void *>(from), to - from);
            }
            std::vector<std::tuple<size_t, size_t, bool>> slices;
            for (const auto & slice : ranges.slices(reinterpret_cast<void *>(begin), bytes)) {
                slices.emplace_back(slice.offset, slice.bytes, slice.pinned);
            }
            return slices;
        },
        py::arg("pinned"), py::arg("begin"), py::arg("bytes"),
        "(offset, bytes, whether pinned) of the parts of a copy's source.");
}
