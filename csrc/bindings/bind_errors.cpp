// Translation of spac's C++ exceptions into those of spac.errors. That module belongs to the package that imports this
// one. So it is imported when the first error is raised.
#include "bindings/bindings.h"
#include "core/error.h"
#include "session/session.h"

namespace py = pybind11;

py::str spac::bindings::message(const std::string & text) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

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
    } catch (const spac::Cancelled & error) {
        raise("Cancelled", error);
    } catch (const spac::Error & error) {
        raise("SpacError", error);
    }
}

void bind_errors(py::module_ &) { py::register_local_exception_translator(&translate); }
