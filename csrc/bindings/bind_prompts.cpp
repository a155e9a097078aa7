// Bindings of what makes prompts: chat templates and formats, and the projector of images. Objects of OpenAI's
// interface pass in both directions as JSON text.
#include "bindings/bindings.h"
#include "session/chat_format.h"
#include "session/projector.h"

#include <pybind11/stl.h>

#include <memory>

namespace py = pybind11;
using spac::ChatPrompt;
using spac::ChatTemplates;
using spac::ImagePrompt;
using spac::Projector;

namespace {

std::unique_ptr<ChatTemplates> make_templates(const py::int_ & model, const std::string & source) {
    void * const pointer = PyLong_AsVoidPtr(model.ptr());
    if (PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return std::make_unique<ChatTemplates>(pointer, source);
}

} // namespace

void bind_prompts(py::module_ & m) {
    py::class_<ChatPrompt, std::shared_ptr<ChatPrompt>>(
        m, "ChatPrompt", "The prompt that messages become, and the reader of its answer.")
        .def_property_readonly("text", [](const ChatPrompt & self) { return spac::bindings::message(self.text()); })
        .def_property_readonly("stops", &ChatPrompt::stops)
        .def_property_readonly("preserved_tokens", &ChatPrompt::preserved_tokens)
        .def_property_readonly("thinks", &ChatPrompt::thinks)
        .def_property_readonly("calls", &ChatPrompt::calls)
        .def_property_readonly("goes_on", &ChatPrompt::goes_on)
        .def("read", &ChatPrompt::read, py::arg("answer"), py::kw_only(), py::arg("is_partial"),
             py::call_guard<py::gil_scoped_release>());

    py::class_<ChatTemplates>(m, "ChatTemplates", "A model's chat templates.")
        .def(py::init(&make_templates), py::arg("model"), py::arg("source") = "")
        .def_property_readonly("capabilities", &ChatTemplates::capabilities)
        .def_property_readonly("can_stop_thinking", &ChatTemplates::can_stop_thinking)
        .def("apply", &ChatTemplates::apply, py::arg("request"), py::call_guard<py::gil_scoped_release>());

    py::class_<ImagePrompt, std::shared_ptr<ImagePrompt>>(m, "ImagePrompt", "A prompt with images.")
        .def_property_readonly("tokens",
                               [](const ImagePrompt & prompt) { return spac::bindings::copy_of(prompt.tokens); })
        .def_readonly("n_images", &ImagePrompt::n_images)
        .def_property_readonly("text", [](const ImagePrompt & prompt) { return py::bytes(prompt.text); })
        .def_property_readonly("files", [](const ImagePrompt & prompt) {
            return std::vector<py::bytes>(prompt.files.begin(), prompt.files.end());
        });
    py::class_<Projector, std::shared_ptr<Projector>>(m, "Projector", "What lets a model see images.")
        .def(py::init([](const py::bytes & path, std::uintptr_t model, const std::string & device,
                         const std::string & marker, int n_threads, int image_min_tokens, int image_max_tokens) {
                 spac::ProjectorConfig config;
                 config.path             = path;
                 config.model            = reinterpret_cast<void *>(model);
                 config.device           = device;
                 config.marker           = marker;
                 config.n_threads        = n_threads;
                 config.image_min_tokens = image_min_tokens;
                 config.image_max_tokens = image_max_tokens;
                 const py::gil_scoped_release release;
                 return std::make_shared<Projector>(config);
             }),
             py::arg("path"), py::arg("model"), py::arg("device") = "", py::kw_only(), py::arg("marker"),
             py::arg("n_threads") = 4, py::arg("image_min_tokens") = -1, py::arg("image_max_tokens") = -1)
        .def_property_readonly("marker", &Projector::marker)
        .def(
            "tokenize",
            [](const Projector & projector, const py::bytes & text, const std::vector<py::bytes> & images) {
                const std::string              prompt = text;
                const std::vector<std::string> files(images.begin(), images.end());
                const py::gil_scoped_release   release;
                return std::make_shared<ImagePrompt>(projector.tokenize(prompt, files));
            },
            py::arg("text"), py::arg("images"));
}
