// Bindings of what belongs to a draft's context: the tap, which shows the states of its layers to the target's routers,
// and the short head.
#include "backend/draft_head/short_head.h"
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

    py::object answers() {
        const spac::Answers found = get().answers();
        shares_                   = py::array_t<float>({found.n, found.width});
        std::copy(found.shares.begin(), found.shares.end(), shares_.mutable_data());
        return found.n == 0 ? py::none() : py::object(ids_of(found));
    }

    py::array_t<float> shares() const { return shares_; }

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
    py::array_t<float>            shares_;
};

std::shared_ptr<spac::ShortHead> make_head(int n_rows, int n_tokens) {
    if (n_rows < 8) {
        throw spac::InputError("a short head needs at least 8 tokens, not " + std::to_string(n_rows));
    }
    if (n_tokens < 1) {
        throw spac::InputError("a short head is for decodes of at least 1 token, not " + std::to_string(n_tokens));
    }
    return spac::new_short_head(n_rows, n_tokens);
}

// The scope of a short head, from __enter__ to __exit__.
class PyHeadScope {
  public:
    explicit PyHeadScope(std::shared_ptr<spac::ShortHead> head) : head_(std::move(head)) {}
    void enter() { scope_.emplace(head_); }
    void exit() { scope_.reset(); }

  private:
    std::shared_ptr<spac::ShortHead>    head_;
    std::optional<spac::ShortHeadScope> scope_;
};

spac::ShortHead & here(spac::ShortHead & head) {
    head.home.check("the head");
    return head;
}

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
        .def_property_readonly("shares", &PyTap::shares)
        .def("next", &PyTap::next, py::arg("token"), py::arg("n"))
        .def("stop", [](const PyTap & self) { self.get().stop(); })
        .def_property_readonly("n_shown", [](const PyTap & self) { return self.get().n_shown(); });

    using spac::ShortHead;
    py::class_<ShortHead, std::shared_ptr<ShortHead>>(m, "ShortHead", "A shortened head of a context.")
        .def(py::init(&make_head), py::arg("n_rows"), py::arg("n_tokens") = 1)
        .def_property_readonly("n_rows", [](ShortHead & self) { return here(self).n_rows(); })
        .def_property_readonly("n_vocab", [](ShortHead & self) { return here(self).n_vocab(); })
        .def_property_readonly("bytes", [](ShortHead & self) { return here(self).bytes(); })
        .def_property_readonly("on", [](ShortHead & self) { return here(self).on(); })
        .def_property_readonly("n_noted", [](ShortHead & self) { return here(self).n_noted(); })
        .def_property_readonly("n_learned", [](ShortHead & self) { return here(self).n_learned(); })
        .def(
            "set_on", [](ShortHead & self, bool on) { here(self).set_on(on); }, py::arg("on"))
        .def(
            "note",
            [](ShortHead & self, const py::object & tokens) {
                const auto list = spac::bindings::token_list(tokens, "tokens");
                here(self).note(list.data(), list.size());
            },
            py::arg("tokens"));
    py::class_<PyHeadScope>(m, "ShortHeadScope", "The context made in this `with` block gets the head.")
        .def(py::init<std::shared_ptr<ShortHead>>(), py::arg("head"))
        .def("__enter__",
             [](py::object self) {
                 self.cast<PyHeadScope &>().enter();
                 return self;
             })
        .def("__exit__", [](PyHeadScope & self, const py::args &) { self.exit(); });
}
