// A plan's wishes beside a verification's demand.
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/hot_cold.h"

namespace py = pybind11;

void bind_hot_cold(py::module_ & m) {
    m.def(
        "hot_cold",
        [](const py::object & demand, const py::object & priority, const py::object & threshold,
           const py::array_t<bool, py::array::c_style> & exists) {
            if (exists.ndim() != 2) {
                throw spac::InputError("exists must have two dimensions");
            }
            using spac::bindings::int32_data;
            const spac::bindings::Shape shape = {exists.shape(0), exists.shape(1)};
            const spac::HotCold         sums  = spac::hot_cold(
                         static_cast<int>(shape[0]), static_cast<int>(shape[1]), int32_data(demand, "demand", shape),
                         int32_data(priority, "priority", shape), int32_data(threshold, "threshold", {shape[0]}), exists.data());
            return py::make_tuple(sums.n_pairs, sums.n_used, sums.n_wanted, sums.n_both, sums.n_exist);
        },
        py::arg("demand"), py::arg("priority"), py::arg("threshold"), py::arg("exists"));
}
