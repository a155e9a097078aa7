// Bindings of the projector: images become parts of a prompt.
#include "bindings/bindings.h"
#include "core/home_process.h"
#include "session/projector.h"

#include <pybind11/stl.h>

#include <memory>

namespace py = pybind11;
using spac::ImagePrompt;
using spac::Projector;

void bind_projector(py::module_ & m) {
    py::class_<ImagePrompt, std::shared_ptr<ImagePrompt>>(m, "ImagePrompt", "A prompt with images.")
        .def_property_readonly("tokens",
                               [](const ImagePrompt & prompt) {
                                   return py::array_t<int32_t>(static_cast<py::ssize_t>(prompt.tokens.size()),
                                                               prompt.tokens.data());
                               })
        .def_readonly("n_images", &ImagePrompt::n_images);
    py::class_<Projector, std::shared_ptr<Projector>>(m, "Projector", "What lets a model see images.")
        .def(py::init([](const py::bytes & path, std::uintptr_t model, const std::string & device, int n_threads,
                         int image_min_tokens, int image_max_tokens) {
                 spac::ProjectorConfig config;
                 config.path             = path;
                 config.model            = reinterpret_cast<void *>(model);
                 config.device           = device;
                 config.n_threads        = n_threads;
                 config.image_min_tokens = image_min_tokens;
                 config.image_max_tokens = image_max_tokens;
                 const py::gil_scoped_release release;
                 return std::make_shared<Projector>(config);
             }),
             py::arg("path"), py::arg("model"), py::arg("device") = "", py::kw_only(), py::arg("n_threads") = 4,
             py::arg("image_min_tokens") = -1, py::arg("image_max_tokens") = -1)
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
