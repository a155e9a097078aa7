// What keeps costs true while an engine runs.
#include "backend/experts/experts.h"
#include "bindings/bindings.h"
#include "core/error.h"
#include "core/layer_waits.h"
#include "core/robust_fit.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

using spac::RobustFit;
using spac::bindings::owned_data;

class PyLayerWaits {
  public:
    PyLayerWaits(const py::dict & arrays, double kept, double most) : arrays_(arrays), options_{kept, most} {
        const py::ssize_t L = py::cast<py::array>(arrays["each"]).size(),
                          F = py::cast<py::array>(arrays["factors"]).size();
        state_              = {static_cast<int>(L),
                               static_cast<int>(F),
                               owned_data<double>(arrays, "loss", F),
                               owned_data<int32_t>(arrays, "at", 1),
                               owned_data<double>(arrays, "factors", F),
                               owned_data<double>(arrays, "doubt", F),
                               owned_data<double>(arrays, "each", L)};
    }

    py::object observe(const py::array_t<spac::LayerCost, py::array::c_style> & layers, double total_s, double dense_s,
                       double usual_s) const {
        if (layers.size() != state_.n_layer || usual_s <= 0) {
            throw spac::InputError("there must be costs of every layer, and a usual wait above 0");
        }
        spac::LayerWaitsStep step = {{}, {}, {}, total_s, dense_s, usual_s};
        for (const spac::LayerCost * layer = layers.data(); layer != layers.data() + layers.size(); ++layer) {
            step.distinct.push_back(static_cast<double>(layer->device_distinct));
            step.wait.push_back(static_cast<double>(layer->wait_ns) * 1e-9);
            step.host.push_back(static_cast<double>(layer->host_ns) * 1e-9);
        }
        const spac::LayerWaitsTold told = spac::observe_waits(state_, options_, step);
        if (!told.waited) {
            return py::none();
        }
        return py::make_tuple(told.usual_s, told.dense_s,
                              told.has_whole ? py::object(py::make_tuple(told.spared_s, told.inside_s)) : py::none());
    }

  private:
    py::dict                arrays_; // keeps them
    spac::LayerWaitsState   state_{};
    spac::LayerWaitsOptions options_;
};

} // namespace

void bind_profile(py::module_ & m) {
    py::class_<RobustFit>(m, "RobustFit", "Unit times of work that is measured in sums.")
        .def(py::init([](std::vector<double> units, double kept, const std::array<int, 2> & window,
                         const std::array<double, 4> & options) {
                 if (window[0] < 1 || window[1] < 1) {
                     throw spac::InputError("what is usual is said by at least one measurement");
                 }
                 return RobustFit(std::move(units),
                                  {kept, window[0], window[1], options[0], options[1], options[2], options[3]});
             }),
             py::arg("units"), py::arg("kept"), py::arg("window"), py::arg("options"))
        .def_property_readonly("units", &RobustFit::units)
        .def("predict", &RobustFit::predict, py::arg("amounts"))
        .def("observe", &RobustFit::observe, py::arg("amounts"), py::arg("seconds"));
    py::class_<PyLayerWaits>(m, "LayerWaits", "What a step's waits tell, on arrays that it changes in place.")
        .def(py::init<const py::dict &, double, double>(), py::arg("arrays"), py::arg("kept"), py::arg("most"))
        .def("observe", &PyLayerWaits::observe, py::arg("layers"), py::arg("total_s"), py::arg("dense_s"),
             py::arg("usual_s"));
}
