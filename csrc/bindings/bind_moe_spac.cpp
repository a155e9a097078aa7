// Binding of MoE-SpAc's step, which works on arrays that Python owns.
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/moe_spac.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using spac::bindings::owned_data;

class PyMoeSpac {
  public:
    PyMoeSpac(const py::dict & arrays, int n_level, double per_step, double forgetting, bool adapt)
        : arrays_(arrays), options_{per_step, forgetting, adapt} {
        const auto exists = py::cast<py::array>(arrays["exists"]);
        if (exists.ndim() != 2 || n_level < 1) {
            throw spac::InputError("exists must have two dimensions, and there must be a level");
        }
        const py::ssize_t L = exists.shape(0), n = L * exists.shape(1), K = n_level;
        const auto        slots = py::cast<py::array>(arrays["pool_slots"]);
        shape_                  = {L, exists.shape(1)};
        state_                  = {static_cast<int>(L),
                                   static_cast<int>(exists.shape(1)),
                                   n_level,
                                   static_cast<int>(slots.size()),
                                   owned_data<int32_t>(arrays, "utility", n),
                                   owned_data<double>(arrays, "up", n),
                                   owned_data<double>(arrays, "down", n),
                                   owned_data<double>(arrays, "last", n),
                                   owned_data<double>(arrays, "count", n),
                                   owned_data<int32_t>(arrays, "used", n),
                                   owned_data<double>(arrays, "hot", 2 * L * K),
                                   owned_data<double>(arrays, "total", 2 * L),
                                   owned_data<uint8_t>(arrays, "exists", n),
                                   owned_data<int32_t>(arrays, "pool", L),
                                   owned_data<int32_t>(arrays, "pool_slots", slots.size()),
                                   owned_data<uint8_t>(arrays, "whole", L)};
        for (py::ssize_t il = 0; il < L; ++il) {
            if (state_.pool[il] < 0 || state_.pool[il] >= state_.n_pool) {
                throw spac::InputError("layer " + std::to_string(il) + " is in a pool that there is not");
            }
        }
    }

    void set_times(const std::vector<std::vector<double>> & times, double draft_token) {
        for (const auto & each : times) {
            if (times.size() != 5 || each.size() != static_cast<size_t>(state_.n_layer)) {
                throw spac::InputError("there must be five times of every layer");
            }
        }
        times_ = {times.at(0), times.at(1), times.at(2), times.at(3), times.at(4), draft_token};
    }

    py::tuple step(const py::object & demand, const py::object & slot_of, int n_verified, int n_drafted, int number,
                   double share, double kept, const py::object & order) const {
        if (n_verified < 1 || times_.upload.empty()) {
            throw spac::InputError("a step needs times, and at least one token");
        }
        const int32_t *         by    = order.is_none() ? nullptr : spac::bindings::int32_data(order, "order", shape_);
        const spac::MoeSpacStep given = {spac::bindings::int32_data(demand, "demand", shape_),
                                         spac::bindings::int32_data(slot_of, "slot_of", shape_),
                                         n_verified,
                                         n_drafted,
                                         number,
                                         share,
                                         kept,
                                         by};
        py::array_t<int32_t>    priority(shape_), threshold(state_.n_layer), tau(state_.n_layer);
        spac::moe_spac_step(state_, options_, times_, given, priority.mutable_data(), threshold.mutable_data(),
                            tau.mutable_data());
        return py::make_tuple(priority, threshold, tau);
    }

  private:
    py::dict              arrays_; // keeps the memory that state_ points to
    spac::bindings::Shape shape_;
    spac::MoeSpacState    state_{};
    spac::MoeSpacOptions  options_;
    spac::MoeSpacTimes    times_;
};

} // namespace

void bind_moe_spac(py::module_ & m) {
    py::class_<PyMoeSpac>(m, "MoeSpac", "MoE-SpAc's step in its default form, on arrays that it changes in place.")
        .def(py::init<const py::dict &, int, double, double, bool>(), py::arg("arrays"), py::arg("n_level"),
             py::arg("per_step"), py::arg("forgetting"), py::arg("adapt"))
        .def("set_times", &PyMoeSpac::set_times, py::arg("times"), py::arg("draft_token"))
        .def("step", &PyMoeSpac::step);
}
