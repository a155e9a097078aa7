// Bindings of chat templates and formats. Objects of OpenAI's interface pass in both directions as JSON text.
#include "bindings/bindings.h"
#include "session/chat_format.h"

#include <pybind11/stl.h>

namespace py = pybind11;
using spac::ChatPrompt;
using spac::ChatTemplates;

namespace {

std::unique_ptr<ChatTemplates> make_templates(const py::int_ & model, const std::string & source) {
    void * const pointer = PyLong_AsVoidPtr(model.ptr());
    if (PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return std::make_unique<ChatTemplates>(pointer, source);
}

} // namespace

void bind_chat_format(py::module_ & m) {
    py::class_<ChatPrompt, std::shared_ptr<ChatPrompt>>(
        m, "ChatPrompt", "The prompt that messages become, and the reader of its answer.")
        .def_property_readonly("text", [](const ChatPrompt & self) { return spac::bindings::message(self.text()); })
        .def_property_readonly("stops", &ChatPrompt::stops)
        .def_property_readonly("preserved_tokens", &ChatPrompt::preserved_tokens)
        .def_property_readonly("thinks", &ChatPrompt::thinks)
        .def_property_readonly("goes_on", &ChatPrompt::goes_on)
        .def("read", &ChatPrompt::read, py::arg("answer"), py::kw_only(), py::arg("is_partial"),
             py::call_guard<py::gil_scoped_release>());

    py::class_<ChatTemplates>(m, "ChatTemplates", "A model's chat templates.")
        .def(py::init(&make_templates), py::arg("model"), py::arg("source") = "")
        .def_property_readonly("capabilities", &ChatTemplates::capabilities)
        .def_property_readonly("can_stop_thinking", &ChatTemplates::can_stop_thinking)
        .def("apply", &ChatTemplates::apply, py::arg("request"), py::call_guard<py::gil_scoped_release>());
}
