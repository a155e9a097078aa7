// The module spac._core: the library's versions, the translation of spac's exceptions, and a list of the other
// bindings.
#include "bindings/bindings.h"
#include "core/error.h"
#include "session/llama_models.h"

namespace py = pybind11;

py::str spac::bindings::message(const std::string & text) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// Raises the exception of spac.errors. That module belongs to the package that imports this one, so it is imported when
// the first error is raised.
static void raise(const char * type, const std::exception & error) {
    const py::object python_type = py::module_::import("spac.errors").attr(type);
    PyErr_SetObject(python_type.ptr(), spac::bindings::message(error.what()).ptr());
}

static void translate(std::exception_ptr pointer) {
    try {
        if (pointer) {
            std::rethrow_exception(pointer);
        }
    } catch (const spac::InputError & error) {
        raise("InputError", error);
    } catch (const spac::MemoryError & error) {
        raise("OutOfMemoryError", error);
    } catch (const spac::DeviceError & error) {
        raise("DeviceError", error);
    } catch (const spac::InternalError & error) {
        raise("InternalError", error);
    } catch (const spac::Error & error) {
        raise("SpacError", error);
    }
}

PYBIND11_MODULE(_core, m) {
    m.doc() = "The mechanism of spac: devices, experts, llama.cpp's loop.";
    py::register_local_exception_translator(&translate);
    m.attr("__version__") = SPAC_VERSION;
#ifdef SPAC_CUDA_VERSION
    m.attr("cuda_version")       = SPAC_CUDA_VERSION;
    m.attr("cuda_architectures") = SPAC_CUDA_ARCHITECTURES;
#else
    m.attr("cuda_version")       = "";
    m.attr("cuda_architectures") = "";
#endif
    m.attr("llama_cpp_python_version") = SPAC_LLAMA_CPP_PYTHON_VERSION;
    m.def("llama_decode_address", &spac::llama_decode_address,
          "Return the address of llama_decode as calls inside the library reach it.");
    m.def("ggml_version", &spac::ggml_version_text, "Return the version of ggml in the library.");
    m.def("system_info", &spac::system_info,
          "Return llama.cpp's line on instruction sets and backends that are compiled in.");
    bind_llama(m);
    bind_kernels(m);
    bind_devices(m);
    bind_remote(m);
    bind_trace(m);
    bind_machine(m);
    bind_experts(m);
    bind_tap(m);
    bind_slot_table(m);
    bind_logistic(m);
    bind_prompts(m);
    bind_parallel(m);
    bind_server(m);
}
