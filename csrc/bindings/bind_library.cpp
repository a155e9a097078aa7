// Bindings of the library itself: its versions, and the address of its llama_decode.
#include <pybind11/pybind11.h>

#include "session/library.h"

namespace py = pybind11;

void bind_library(py::module_ & m) {
    m.attr("__version__")              = SPAC_VERSION;
    m.attr("llama_cpp_python_version") = SPAC_LLAMA_CPP_PYTHON_VERSION;
    m.def("llama_decode_address", &spac::llama_decode_address,
          "Return the address of llama_decode as calls inside the library reach it.");
    m.def("ggml_version", &spac::ggml_version_text, "Return the version of ggml in the library.");
    m.def("system_info", &spac::system_info,
          "Return llama.cpp's line on instruction sets and backends that are compiled in.");
}
