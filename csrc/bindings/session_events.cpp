#include "bindings/session_holder.h"

#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>

namespace py = pybind11;

namespace spac::bindings {
namespace {

struct DraftToken {
    int32_t    token;
    int        index;
    py::object routes;
    py::object shares;
};

struct VerifyLayer {
    int                  layer;
    py::array_t<int32_t> demand;
};

struct DraftEnd {
    py::array_t<int32_t> tokens;
    int64_t              draft_ns;
    py::object           routes;
    py::object           shares;
};

// Returns a copy of what is known of the routes' entries as [L, T, U], or None.
template <typename T> py::object of_routes(const DraftRoutes * routes, std::vector<T> DraftRoutes::*what) {
    if (routes == nullptr) {
        return py::none();
    }
    const py::array_t<T> by_token({routes->n_tokens, routes->n_layer, routes->n_used}, (routes->*what).data());
    return by_token.attr("transpose")(1, 0, 2);
}

// Returns a read-only view on the session's one buffer, [L]. It is empty without experts.
py::array_t<LayerCost> layer_costs(const Step & self) {
    using Holder = std::shared_ptr<const std::vector<LayerCost>>;
    py::array_t<LayerCost> view;
    if (self.layer_costs != nullptr && !self.layer_costs->empty()) {
        const py::capsule owner(new Holder(self.layer_costs),
                                [](void * holder) { delete static_cast<Holder *>(holder); });
        view = py::array_t<LayerCost>(self.n_layer, self.layer_costs->data(), owner);
    }
    view.attr("flags").attr("writeable") = false;
    return view;
}

} // namespace

void check_callback(const std::string & event, const py::object & callback) {
    static const char * const known[] = {"draft_token", "draft_end",    "verify_layer",
                                         "verify_end",  "prompt_graph", "prompt_tail"};
    if (std::find(std::begin(known), std::end(known), event) == std::end(known)) {
        throw InputError("unknown event '" + event +
                         "', known are draft_token, draft_end, verify_layer, verify_end, "
                         "prompt_graph, prompt_tail");
    }
    if (!callback.is_none() && PyCallable_Check(callback.ptr()) == 0) {
        throw InputError("the callback of " + event + " is " + describe(callback) +
                         ", expected something to call, or None");
    }
}

Listeners listeners(const Callbacks & callbacks, bool keeps_draft_routes) {
    Listeners result;
    result.draft_routes = keeps_draft_routes;
    const auto find     = [&](const char * event) {
        const auto found = callbacks.find(event);
        return found == callbacks.end() ? py::handle() : py::handle(found->second);
    };
    if (const auto callback = find("draft_token")) {
        result.draft_token = [callback](int32_t token, int index, const DraftRoutes * routes) {
            const py::gil_scoped_acquire acquire;
            callback(DraftToken{token, index, of_routes(routes, &DraftRoutes::ids),
                                of_routes(routes, &DraftRoutes::shares)});
        };
    }
    if (const auto callback = find("draft_end")) {
        result.draft_end = [callback](const std::vector<int32_t> & draft, int64_t ns, const DraftRoutes * routes) {
            const py::gil_scoped_acquire acquire;
            callback(DraftEnd{copy_of(draft), ns, of_routes(routes, &DraftRoutes::ids),
                              of_routes(routes, &DraftRoutes::shares)});
        };
    }
    if (const auto callback = find("verify_layer")) {
        result.verify_layer = [callback](int layer, const std::vector<int32_t> & demand) {
            const py::gil_scoped_acquire acquire;
            callback(VerifyLayer{layer, copy_of(demand)});
        };
    }
    if (const auto callback = find("verify_end")) {
        result.verify_end = [callback](const Step & step) {
            const py::gil_scoped_acquire acquire;
            callback(step);
        };
    }
    if (const auto callback = find("prompt_graph")) {
        result.prompt_graph = [callback](int n_pending, int n_failed) {
            const py::gil_scoped_acquire acquire;
            return callback(n_pending, n_failed).cast<int>();
        };
    }
    if (const auto callback = find("prompt_tail")) {
        result.prompt_tail = [callback] {
            const py::gil_scoped_acquire acquire;
            callback();
        };
    }
    result.interrupt_check = [] {
        const py::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) {
            throw py::error_already_set();
        }
    };
    return result;
}

void bind_session_events(py::module_ & m) {
    py::class_<Step>(m, "Step", "The event and the figures of one finished step.")
        .def_property_readonly("tokens",
                               [](const py::object & self) {
                                   const auto & tokens = self.cast<const Step &>().tokens;
                                   return int32_view(tokens.data(), {static_cast<py::ssize_t>(tokens.size())}, self);
                               })
        .def_property_readonly("demand",
                               [](const Step & self) {
                                   return int32_view(self.demand, {self.n_layer, self.n_expert});
                               })
        .def_property_readonly("layer_costs", &layer_costs)
        .def_readonly("n_uploads", &Step::n_uploads)
        .def_readonly("upload_bytes", &Step::upload_bytes)
        .def_readonly("upload_ns", &Step::upload_ns)
        .def_readonly("n_drafted", &Step::n_drafted)
        .def_readonly("n_accepted", &Step::n_accepted)
        .def_readonly("n_verified", &Step::n_verified)
        .def_readonly("n_steps", &Step::n_steps)
        .def_readonly("draft_ns", &Step::draft_ns)
        .def_readonly("verify_ns", &Step::verify_ns)
        .def_readonly("sample_ns", &Step::sample_ns)
        .def_property_readonly("reason", [](const Step & self) { return to_string(self.reason); });

    py::class_<DraftToken>(m, "DraftToken", "The event of one drafted token.")
        .def_readonly("token", &DraftToken::token)
        .def_readonly("index", &DraftToken::index)
        .def_readonly("routes", &DraftToken::routes)
        .def_readonly("shares", &DraftToken::shares);
    py::class_<VerifyLayer>(m, "VerifyLayer", "The event of one MoE layer that a verification has passed.")
        .def_readonly("layer", &VerifyLayer::layer)
        .def_readonly("demand", &VerifyLayer::demand);
    py::class_<DraftEnd>(m, "DraftEnd", "The event of a finished draft, before it is verified.")
        .def_readonly("tokens", &DraftEnd::tokens)
        .def_readonly("draft_ns", &DraftEnd::draft_ns)
        .def_readonly("routes", &DraftEnd::routes)
        .def_readonly("shares", &DraftEnd::shares);
}

} // namespace spac::bindings
