// Bindings of the tap of a draft's context, which shows the states of its layers to the target's routers.
#include "backend/experts/experts.h"
#include "backend/hidden_states/tap.h"
#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <optional>

namespace py = pybind11;

namespace {

// A tap, and the scope that lives from __enter__ to __exit__.
class PyTap {
  public:
    void enter() {
        if (scope_) {
            throw spac::InputError("the Tap is entered already: use one for each context");
        }
        scope_.emplace(tap_);
    }
    void exit() { scope_.reset(); }

    spac::Tap & get() const {
        tap_->home.check("the tap");
        return *tap_;
    }

    void ask(std::shared_ptr<spac::Experts> target, const std::vector<int> & inputs,
             const std::vector<int> & n_chosen) {
        if (inputs.size() != n_chosen.size()) {
            throw spac::InputError("ask() needs one number of experts for each input");
        }
        std::vector<spac::Question> questions;
        for (size_t i = 0; i < inputs.size(); ++i) {
            questions.push_back({static_cast<int>(i), inputs[i], n_chosen[i]});
        }
        get().ask(std::move(target), questions);
    }

    py::object answers() const {
        const spac::Answers found = get().answers();
        return found.n == 0 ? py::none() : py::object(ids_of(found));
    }

    py::object next(uint64_t token, int n) const {
        spac::Answers found;
        {
            const py::gil_scoped_release release;
            found = get().next(token, n);
        }
        return found.token == 0 ? py::none() : py::object(py::make_tuple(found.token, ids_of(found)));
    }

  private:
    static py::array_t<int32_t> ids_of(const spac::Answers & found) {
        py::array_t<int32_t> ids({found.n, found.width});
        std::copy(found.ids.begin(), found.ids.end(), ids.mutable_data());
        return ids;
    }

    std::shared_ptr<spac::Tap>    tap_ = spac::new_tap();
    std::optional<spac::TapScope> scope_;
};

} // namespace

void bind_tap(py::module_ & m) {
    py::class_<PyTap>(m, "Tap", "The states of the context that is made in its `with` block, for a target's routers.")
        .def(py::init<>())
        .def("__enter__",
             [](py::object self) {
                 self.cast<PyTap &>().enter();
                 return self;
             })
        .def("__exit__", [](PyTap & self, const py::args &) { self.exit(); })
        .def_property_readonly("n_layer", [](const PyTap & self) { return self.get().n_layer(); })
        .def_property_readonly("n_embd", [](const PyTap & self) { return self.get().n_embd(); })
        .def_property_readonly("callback", [](const PyTap & self) { return self.get().callback(); })
        .def("ask", &PyTap::ask, py::arg("target"), py::arg("inputs"), py::arg("n_chosen"))
        .def("answers", &PyTap::answers)
        .def("next", &PyTap::next, py::arg("token"), py::arg("n"))
        .def("stop", [](const PyTap & self) { self.get().stop(); })
        .def_property_readonly("n_shown", [](const PyTap & self) { return self.get().n_shown(); });
}
