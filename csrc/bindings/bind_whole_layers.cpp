// The choice of whole layers, on arrays that Python owns.
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/whole_layers.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using spac::bindings::owned_data;

class PyWholeLayers {
  public:
    PyWholeLayers(const py::dict & arrays, int looks, double share, double horizon, double need, int trial, int at_once)
        : arrays_(arrays), options_{looks, share, horizon, need, trial, at_once} {
        const auto exists = py::cast<py::array>(arrays["exists"]);
        if (exists.ndim() != 2 || at_once < 1) {
            throw spac::InputError("exists must have two dimensions, and at_once be at least 1");
        }
        const py::ssize_t L = exists.shape(0), N = exists.shape(1);
        const auto        slots = py::cast<py::array>(arrays["pool_slots"]);
        const py::ssize_t P     = slots.size();
        shape_                  = {L, N};
        state_                  = {static_cast<int>(L),
                                   static_cast<int>(N),
                                   static_cast<int>(P),
                                   owned_data<uint8_t>(arrays, "whole", L),
                                   owned_data<int32_t>(arrays, "slots_left", P),
                                   owned_data<double>(arrays, "gain", L),
                                   owned_data<double>(arrays, "seen", 6 * P),
                                   owned_data<int32_t>(arrays, "looks", 2 * P),
                                   owned_data<uint8_t>(arrays, "exists", L * N),
                                   owned_data<int32_t>(arrays, "pool", L),
                                   owned_data<int32_t>(arrays, "pool_slots", P)};
        for (py::ssize_t il = 0; il < L; ++il) {
            if (state_.pool[il] < 0 || state_.pool[il] >= state_.n_pool) {
                throw spac::InputError("layer " + std::to_string(il) + " is in a pool that there is not");
            }
        }
    }

    void set_times(const std::vector<std::vector<double>> & times, double hand_off) {
        for (const auto & each : times) {
            if (times.size() != 4 || each.size() < static_cast<size_t>(state_.n_pool)) {
                throw spac::InputError("there must be four times of every pool");
            }
        }
        times_ = {times.at(0), times.at(1), times.at(2), times.at(3), hand_off};
    }

    bool look(const py::array_t<double, py::array::c_style> & chance, const py::object & priority,
              const py::object & demand, const py::object & slot_of) const {
        if (times_.upload.empty() || chance.size() != shape_[0] * shape_[1]) {
            throw spac::InputError("a look needs times, and a chance for every expert");
        }
        return spac::whole_layers_look(state_, options_, times_,
                                       {chance.data(), spac::bindings::int32_data(priority, "priority", shape_),
                                        spac::bindings::int32_data(demand, "demand", shape_),
                                        spac::bindings::int32_data(slot_of, "slot_of", shape_)});
    }

  private:
    py::dict              arrays_; // keeps them
    spac::bindings::Shape shape_;
    spac::WholeState      state_{};
    spac::WholeOptions    options_;
    spac::WholeTimes      times_;
};

} // namespace

void bind_whole_layers(py::module_ & m) {
    py::class_<PyWholeLayers>(m, "WholeLayers", "Which layers are to be whole, on arrays that it changes in place.")
        .def(py::init<const py::dict &, int, double, double, double, int, int>(), py::arg("arrays"), py::arg("looks"),
             py::arg("share"), py::arg("horizon"), py::arg("need"), py::arg("trial"), py::arg("at_once"))
        .def("set_times", &PyWholeLayers::set_times, py::arg("times"), py::arg("hand_off"))
        .def("look", &PyWholeLayers::look);
}
