// Binding of the tap, which records the inputs of the FFNs of a draft's layers.
#include "backend/hidden_states/tap.h"
#include "bindings/bindings.h"

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

    // Returns a read-only view on the tap's memory, [n_layer, n_embd], or None if the tap has no states.
    py::object states() const {
        using Holder      = std::shared_ptr<const float>;
        const Holder data = get().states();
        if (data == nullptr) {
            return py::none();
        }
        const py::capsule  owner(new Holder(data), [](void * holder) { delete static_cast<Holder *>(holder); });
        py::array_t<float> view({tap_->n_layer(), tap_->n_embd()}, data.get(), owner);
        view.attr("flags").attr("writeable") = false;
        return view;
    }

  private:
    std::shared_ptr<spac::Tap>    tap_ = spac::new_tap();
    std::optional<spac::TapScope> scope_;
};

} // namespace

void bind_tap(py::module_ & m) {
    py::class_<PyTap>(m, "Tap", "The inputs of every FFN of the context that is made in its `with` block.")
        .def(py::init<>())
        .def("__enter__",
             [](py::object self) {
                 self.cast<PyTap &>().enter();
                 return self;
             })
        .def("__exit__", [](PyTap & self, const py::args &) { self.exit(); })
        .def_property_readonly("n_layer", [](const PyTap & self) { return self.get().n_layer(); })
        .def_property_readonly("n_embd", [](const PyTap & self) { return self.get().n_embd(); })
        .def(
            "set_on", [](const PyTap & self, bool on) { self.get().set_on(on); }, py::arg("on"))
        .def("states", &PyTap::states)
        .def_property_readonly("n_tapped", [](const PyTap & self) { return self.get().n_tapped(); });
}
