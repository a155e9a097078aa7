// The library itself: versions, and where its llama_decode is.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kernels/rows.h"
#include "session/library.h"

namespace py = pybind11;

void bind_library(py::module_ & m) {
    m.attr("__version__")              = SPAC_VERSION;
    m.attr("llama_cpp_python_version") = SPAC_LLAMA_CPP_PYTHON_VERSION;
    m.def("llama_decode_address", &spac::llama_decode_address,
          "The address of llama_decode as calls inside the library reach it.");
    m.def("ggml_version", &spac::ggml_version_text, "The version of ggml in the library.");
    m.def("cpu_kernels", &spac::kernels::kernel_names,
          "Types of weights that this build has kernels for (csrc/kernels).");
    m.def("trusted_cpu_kernels", &spac::kernels::trusted_kernel_names,
          "Those of them that are used: their results are ggml's on this machine, bit for bit.");
    m.def("cpu_kernels_enabled", &spac::kernels::enabled, "Whether the CPU computes with them.");
    m.def("set_cpu_kernels", &spac::kernels::enable, py::arg("on"),
          "Whether the CPU computes with them, for the whole process; else with ggml's own.");
    m.def("system_info", &spac::system_info, "llama.cpp's line on instruction sets and backends compiled in.");
}
