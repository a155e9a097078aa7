// Bindings of copies of files on huge pages.
#include "bindings/bindings.h"
#include "core/huge_pages.h"

#include <memory>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

namespace py = pybind11;
using spac::HugeCopies;

namespace {

// Copies with a progress function in Python. An exception of that function cannot cross the loader. It stops the
// copying, and is kept here.
struct PyCopies : HugeCopies {
    PyCopies(int n_threads, std::vector<int> nodes, Progress progress, std::shared_ptr<py::object> raised)
        : HugeCopies(n_threads, std::move(nodes), std::move(progress)), error(std::move(raised)) {}
    std::shared_ptr<py::object> error;
};

std::shared_ptr<PyCopies> make_copies(int n_threads, std::vector<int> nodes, const py::function & progress) {
    auto       error = std::make_shared<py::object>(py::none());
    const auto call  = [progress, error](size_t done) {
        const py::gil_scoped_acquire gil;
        try {
            return progress(done).cast<bool>();
        } catch (const py::error_already_set & raised) {
            *error = raised.value();
            return false;
        }
    };
    return std::make_shared<PyCopies>(n_threads, std::move(nodes), call, std::move(error));
}

} // namespace

void bind_huge_pages(py::module_ & m) {
    py::class_<HugeCopies, std::shared_ptr<HugeCopies>>(m, "_Copies");
    py::class_<PyCopies, HugeCopies, std::shared_ptr<PyCopies>>(m, "HugeCopies",
                                                                "Copies a model's files to huge pages.")
        .def(py::init(&make_copies), py::arg("n_threads"), py::arg("nodes"), py::arg("progress"))
        .def_property_readonly("error", [](const PyCopies & copies) { return *copies.error; })
        .def_property_readonly("bytes", [](const HugeCopies & copies) { return copies.report().bytes; })
        .def_property_readonly("huge_bytes", [](const HugeCopies & copies) { return copies.report().huge_bytes; })
        .def_property_readonly("seconds", [](const HugeCopies & copies) { return copies.report().seconds; })
        .def_property_readonly("failure", [](const HugeCopies & copies) { return copies.report().failure; });
}
