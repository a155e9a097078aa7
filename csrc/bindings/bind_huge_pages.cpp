// Bindings of copies of files on huge pages, and of the rates at which this machine reads such pages.
#include "bindings/bindings.h"
#include "core/huge_pages.h"
#include "core/read_rates.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

namespace py = pybind11;
using spac::CopySettings;
using spac::HugeCopies;
using spac::ReadRates;
using spac::Region;

namespace {

using Release = py::call_guard<py::gil_scoped_release>;

// Copies with a progress function in Python. An exception of that function cannot cross the loader. It stops the
// copying, and is kept here.
struct PyCopies : HugeCopies {
    PyCopies(const CopySettings & settings, Progress progress, std::shared_ptr<py::object> raised)
        : HugeCopies(settings, std::move(progress)), error(std::move(raised)) {}
    std::shared_ptr<py::object> error;
};

std::shared_ptr<PyCopies> make_copies(int n_threads, bool drop_cache, double most_seconds, int64_t stall_page_ns,
                                      int64_t stall_total_ns, int64_t stall_compactions, const py::object & progress,
                                      const std::vector<int> & nodes) {
    const CopySettings settings = {
        n_threads, drop_cache, {stall_page_ns, stall_total_ns, stall_compactions}, most_seconds, nodes};
    auto                 error = std::make_shared<py::object>(py::none());
    HugeCopies::Progress call;
    if (!progress.is_none()) {
        call = [progress, error](size_t done) {
            const py::gil_scoped_acquire gil;
            try {
                return progress(done).cast<bool>();
            } catch (const py::error_already_set & raised) {
                *error = raised.value();
            } catch (const py::cast_error &) { // The function did not return a bool.
            }
            return false;
        };
    }
    return std::make_shared<PyCopies>(settings, std::move(call), std::move(error));
}

} // namespace

void bind_huge_pages(py::module_ & m) {
    m.attr("HUGE_PAGE") = spac::huge_page_bytes;
    py::class_<Region>(m, "Region", "Read-only memory that begins at a multiple of 2 MB.", py::buffer_protocol())
        .def_buffer([](const Region & region) {
            return py::buffer_info(reinterpret_cast<const uint8_t *>(region.data()),
                                   static_cast<py::ssize_t>(region.size()), true);
        })
        .def_property_readonly("address",
                               [](const Region & region) { return reinterpret_cast<uintptr_t>(region.data()); })
        .def_property_readonly("size", &Region::size)
        .def_property_readonly("huge_bytes", &Region::huge_bytes);
    py::class_<HugeCopies, std::shared_ptr<HugeCopies>>(m, "_Copies");
    py::class_<PyCopies, HugeCopies, std::shared_ptr<PyCopies>>(m, "HugeCopies",
                                                                "Copies a model's files to huge pages.")
        .def(py::init(&make_copies), py::arg("n_threads"), py::arg("drop_cache"), py::arg("most_seconds"),
             py::arg("stall_page_ns"), py::arg("stall_total_ns"), py::arg("stall_compactions"),
             py::arg("progress") = py::none(), py::arg("nodes") = std::vector<int>())
        .def_property_readonly("error", [](const PyCopies & copies) { return *copies.error; })
        .def("copy", &HugeCopies::copy, py::arg("fd"), py::arg("n_bytes"), Release())
        .def_property_readonly("bytes", [](const HugeCopies & copies) { return copies.report().bytes; })
        .def_property_readonly("huge_bytes", [](const HugeCopies & copies) { return copies.report().huge_bytes; })
        .def_property_readonly("seconds", [](const HugeCopies & copies) { return copies.report().seconds; })
        .def_property_readonly("stalled", [](const HugeCopies & copies) { return copies.report().stalled; })
        .def_property_readonly("stopped", [](const HugeCopies & copies) { return copies.report().stopped; })
        .def_property_readonly("failure", [](const HugeCopies & copies) { return copies.report().failure; });
    py::class_<ReadRates>(m, "ReadRates", "The rates at which a file's mapping and its copy on huge pages are read.")
        .def_readonly("mapped_gb_s", &ReadRates::mapped_gb_s)
        .def_readonly("huge_gb_s", &ReadRates::huge_gb_s)
        .def_readonly("gain", &ReadRates::gain)
        .def_readonly("copy_gb_s", &ReadRates::copy_gb_s)
        .def_readonly("bytes", &ReadRates::bytes)
        .def_readonly("huge_bytes", &ReadRates::huge_bytes);
    m.def("measure_read_rates", &spac::measure_read_rates, py::arg("fd"), py::arg("n_bytes"), py::arg("n_threads"),
          Release());
}
