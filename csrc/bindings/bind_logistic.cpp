// Binding of the learned scheduler's step, which works on arrays that Python owns.
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/logistic.h"

#include <pybind11/stl.h>

#include <array>

namespace py = pybind11;

namespace {

using spac::bindings::owned_data;

class PyLogistic {
  public:
    PyLogistic(const py::dict & arrays, double rate, const std::array<double, 3> & kept, double squares_kept,
               double least, double most, const std::array<double, 4> & tables)
        : arrays_(arrays), options_{rate, kept[0], kept[1], kept[2], squares_kept, least, most} {
        const auto exists = py::cast<py::array>(arrays["exists"]);
        if (exists.ndim() != 2) {
            throw spac::InputError("exists must have two dimensions");
        }
        const py::ssize_t L = exists.shape(0), n = L * exists.shape(1), F = spac::n_logistic_features;
        const auto        slots = py::cast<py::array>(arrays["pool_slots"]);
        shape_                  = {L, exists.shape(1)};
        state_                  = {static_cast<int>(L),
                                   static_cast<int>(exists.shape(1)),
                                   static_cast<int>(slots.size()),
                                   owned_data<double>(arrays, "weights", F + 1),
                                   owned_data<double>(arrays, "squares", F + 1),
                                   owned_data<float>(arrays, "features", F * n),
                                   owned_data<float>(arrays, "probability", n),
                                   owned_data<uint8_t>(arrays, "exists", n),
                                   owned_data<int32_t>(arrays, "pool", L),
                                   owned_data<int32_t>(arrays, "pool_slots", slots.size()),
                                   owned_data<uint8_t>(arrays, "whole", L),
                                   transitions(tables, least)};
        for (py::ssize_t il = 0; il < L; ++il) {
            if (state_.pool[il] < 0 || state_.pool[il] >= state_.n_pool) {
                throw spac::InputError("layer " + std::to_string(il) + " is in a pool that there is not");
            }
        }
    }

    py::tuple step(const py::object & demand, const py::object & slot_of, const py::object & routes, int n_verified,
                   int n_rejected, double margin, double hold) const {
        if (n_verified < 1) {
            throw spac::InputError("a step needs at least one token");
        }
        spac::LogisticStep given = {};
        given.demand             = spac::bindings::int32_data(demand, "demand", shape_);
        given.slot_of            = spac::bindings::int32_data(slot_of, "slot_of", shape_);
        given.n_verified         = n_verified;
        given.n_rejected         = n_rejected;
        given.margin             = margin;
        given.hold               = hold;
        if (!routes.is_none()) {
            const auto        array = py::cast<py::array>(routes);
            const py::ssize_t T = array.ndim() == 3 ? array.shape(1) : 0, U = array.ndim() == 3 ? array.shape(2) : 0;
            given.routes  = spac::bindings::int32_data(routes, "routes", {shape_[0], T, U});
            given.n_token = static_cast<int>(T);
            given.n_used  = static_cast<int>(U);
        }
        py::array_t<int32_t> priority(shape_), threshold(shape_[0]);
        spac::logistic_step(state_, options_, given, priority.mutable_data(), threshold.mutable_data());
        return py::make_tuple(priority, threshold);
    }

  private:
    // Return the tables' part of the state, whose arrays have the shapes of `exists` and `source`.
    spac::Transitions transitions(const std::array<double, 4> & tables, double least) const {
        const py::ssize_t L = shape_[0], N = shape_[1], S = py::cast<py::array>(arrays_["source"]).size();
        const auto *      source = owned_data<int32_t>(arrays_, "source", S);
        for (py::ssize_t i = 0; i < S; ++i) {
            if (S > spac::n_most_sources || source[i] < 0 || source[i] >= L) {
                throw spac::InputError("source " + std::to_string(i) + " is a layer that there is not");
            }
        }
        return {static_cast<int>(L),
                static_cast<int>(N),
                static_cast<int>(S),
                source,
                owned_data<float>(arrays_, "table", S * N * L * N),
                owned_data<float>(arrays_, "seen", S * N),
                owned_data<uint8_t>(arrays_, "marked", S * N),
                owned_data<double>(arrays_, "popularity", L * N),
                owned_data<double>(arrays_, "popularity_steps", 1),
                tables[0],
                tables[1],
                tables[2],
                tables[3],
                least};
    }

    py::dict              arrays_; // keeps the memory that state_ points to
    spac::bindings::Shape shape_;
    spac::LogisticState   state_{};
    spac::LogisticOptions options_;
};

} // namespace

void bind_logistic(py::module_ & m) {
    py::class_<PyLogistic>(m, "Logistic", "The learned scheduler's step, on arrays that it changes in place.")
        .def(py::init<const py::dict &, double, const std::array<double, 3> &, double, double, double,
                      const std::array<double, 4> &>(),
             py::arg("arrays"), py::arg("rate"), py::arg("kept"), py::arg("squares_kept"), py::arg("least"),
             py::arg("most"), py::arg("tables"))
        .def("step", &PyLogistic::step);
}
