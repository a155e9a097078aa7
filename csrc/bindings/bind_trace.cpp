// Bindings of the recorder of a timeline, and the layouts of its records and of the layers' costs for numpy.
#include "backend/experts/experts.h"
#include "bindings/bindings.h"
#include "core/trace.h"

#include <pybind11/stl.h>

#include <vector>

namespace py = pybind11;
using spac::Span;
using spac::Trace;

namespace {

// One record in numpy's array. The fields have the names and types that Python sees: `activity` is an int32 there.
struct Record {
    int64_t start_ns, end_ns, bytes;
    int32_t activity, layer, expert, pool, count, distinct, ok;
};

py::array_t<Record> take(Trace & trace) {
    std::vector<Span> spans;
    {
        const py::gil_scoped_release release;
        spans = trace.take();
    }
    py::array_t<Record> records(static_cast<py::ssize_t>(spans.size()));
    Record *            to = records.mutable_data();
    for (const Span & s : spans) {
        *to++ = {s.start_ns, s.end_ns,   s.bytes, static_cast<int32_t>(s.activity), s.layer, s.expert, s.pool,
                 s.count,    s.distinct, s.ok};
    }
    return records;
}

} // namespace

void bind_trace(py::module_ & m) {
    PYBIND11_NUMPY_DTYPE(Record, start_ns, end_ns, bytes, activity, layer, expert, pool, count, distinct, ok);
    using spac::LayerCost;
    PYBIND11_NUMPY_DTYPE(LayerCost, host_ns, wait_ns, host_activations, host_distinct, device_activations,
                         device_distinct, loaded_distinct);

    py::list names;
    for (const char * name : spac::activity_names) {
        names.append(name);
    }
    m.attr("ACTIVITIES") = py::tuple(names);
    py::class_<Trace, std::shared_ptr<Trace>>(m, "Trace",
                                              "The recorder of a timeline, which is off until it is started.")
        .def(py::init<>())
        .def("start", &Trace::start, py::arg("capacity") = Trace::default_capacity,
             py::call_guard<py::gil_scoped_release>())
        .def("stop", &Trace::stop)
        .def("take", &take)
        .def_property_readonly("on", &Trace::on)
        .def_property_readonly("dropped", py::cpp_function(&Trace::dropped, py::call_guard<py::gil_scoped_release>()))
        .def("__len__", &Trace::size, py::call_guard<py::gil_scoped_release>());
}
