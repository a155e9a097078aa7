#include "bindings/loop_arguments.h"

#include <pybind11/stl.h>

#include <functional>
#include <set>
#include <string_view>
#include <type_traits>

namespace py = pybind11;

namespace spac::bindings {
namespace {

struct Setter {
    bool                                             is_sampling;
    std::function<void(SessionConfig &, py::handle)> set;
};

// Returns Python's word for a type, for messages.
template <typename T> const char * python_name() {
    if constexpr (std::is_same_v<T, bool>) {
        return "a bool";
    } else if constexpr (std::is_integral_v<T>) {
        return "an int";
    } else if constexpr (std::is_floating_point_v<T>) {
        return "a float";
    } else if constexpr (std::is_same_v<T, std::string>) {
        return "a str";
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
        return "a list of str";
    } else if constexpr (std::is_same_v<T, std::optional<std::vector<std::string>>>) {
        return "a list of str or None";
    } else if constexpr (std::is_same_v<T, std::optional<uint32_t>>) {
        return "an int from 0 to 4294967295 or None";
    } else if constexpr (std::is_same_v<T, std::shared_ptr<ChatPrompt>>) {
        return "a ChatPrompt or None";
    } else {
        return "a dict of int to float";
    }
}

template <typename T> void assign(const char * name, py::handle value, T & field) {
    // Python takes a string for a sequence of strings. The caller never means that.
    const bool is_list =
        std::is_same_v<T, std::vector<std::string>> || std::is_same_v<T, std::optional<std::vector<std::string>>>;
    try {
        if (!(is_list && py::isinstance<py::str>(value))) {
            field = value.cast<T>();
            return;
        }
    } catch (const py::cast_error &) {
    }
    throw InputError(std::string(name) + " is " + std::string(py::str(py::repr(value))) + ", expected " +
                     python_name<T>());
}

const std::map<std::string, Setter> & setters() {
#define SPAC_KEY(key, field)                                                                                           \
    {                                                                                                                  \
        key, {                                                                                                         \
            std::string_view(#field).substr(0, 9) == "sampling.",                                                      \
                [](SessionConfig & config, py::handle value) { assign(key, value, config.field); }                     \
        }                                                                                                              \
    }
    static const std::map<std::string, Setter> table = {
        SPAC_KEY("draft_types", draft.types),
        SPAC_KEY("draft_max", draft.n_max),
        SPAC_KEY("draft_min", draft.n_min),
        SPAC_KEY("p_min", draft.p_min),
        SPAC_KEY("seed", sampling.seed),
        SPAC_KEY("temp", sampling.temp),
        SPAC_KEY("top_k", sampling.top_k),
        SPAC_KEY("top_p", sampling.top_p),
        SPAC_KEY("min_p", sampling.min_p),
        SPAC_KEY("typ_p", sampling.typ_p),
        SPAC_KEY("top_n_sigma", sampling.top_n_sigma),
        SPAC_KEY("xtc_probability", sampling.xtc_probability),
        SPAC_KEY("xtc_threshold", sampling.xtc_threshold),
        SPAC_KEY("dynatemp_range", sampling.dynatemp_range),
        SPAC_KEY("dynatemp_exponent", sampling.dynatemp_exponent),
        SPAC_KEY("repeat_last_n", sampling.repeat_last_n),
        SPAC_KEY("repeat_penalty", sampling.repeat_penalty),
        SPAC_KEY("frequency_penalty", sampling.frequency_penalty),
        SPAC_KEY("presence_penalty", sampling.presence_penalty),
        SPAC_KEY("dry_multiplier", sampling.dry_multiplier),
        SPAC_KEY("dry_base", sampling.dry_base),
        SPAC_KEY("dry_allowed_length", sampling.dry_allowed_length),
        SPAC_KEY("dry_penalty_last_n", sampling.dry_penalty_last_n),
        SPAC_KEY("mirostat", sampling.mirostat),
        SPAC_KEY("mirostat_lr", sampling.mirostat_lr),
        SPAC_KEY("mirostat_ent", sampling.mirostat_ent),
        SPAC_KEY("mirostat_penalizes", sampling.mirostat_penalizes),
        SPAC_KEY("grammar", sampling.grammar),
        SPAC_KEY("logit_bias", sampling.logit_bias),
        SPAC_KEY("ignore_eos", sampling.ignore_eos),
        SPAC_KEY("samplers", sampling.samplers),
        SPAC_KEY("chat", sampling.chat),
        SPAC_KEY("reasoning_budget", sampling.reasoning_budget),
        SPAC_KEY("prompt_cache_bytes", prompt_cache_bytes),
        SPAC_KEY("n_checkpoints", n_checkpoints),
        SPAC_KEY("checkpoint_step", checkpoint_step),
    };
#undef SPAC_KEY
    return table;
}

void apply(const py::dict & keywords, SessionConfig & config, bool sampling_only) {
    const auto & table = setters();
    for (const auto & [key, value] : keywords) {
        const auto name  = key.cast<std::string>();
        const auto found = table.find(name);
        if (found == table.end() || (sampling_only && !found->second.is_sampling)) {
            std::string known;
            for (const auto & [each, setter] : table) {
                if (setter.is_sampling || !sampling_only) {
                    known += (known.empty() ? "" : ", ") + each;
                }
            }
            throw InputError(std::string("unknown ") + (sampling_only ? "sampling" : "loop") + " parameter '" + name +
                             "', known are " + known);
        }
        found->second.set(config, value);
    }
}

struct DraftToken {
    int32_t    token;
    int        index;
    py::object routes;
};

struct VerifyLayer {
    int                  layer;
    py::array_t<int32_t> demand;
};

struct DraftEnd {
    py::array_t<int32_t> tokens;
    int64_t              draft_ns;
    py::object           routes;
};

// Returns a copy of the routes as [L, T, U], or None.
py::object copy_of(const DraftRoutes * routes) {
    if (routes == nullptr) {
        return py::none();
    }
    const py::array_t<int32_t> by_token({routes->n_tokens, routes->n_layer, routes->n_used}, routes->ids.data());
    return by_token.attr("transpose")(1, 0, 2);
}

// Returns a read-only view on the loop's one buffer, [L]. It is empty without experts.
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

void apply_keywords(const py::dict & keywords, SessionConfig & config) { apply(keywords, config, false); }

SamplingConfig sampling_config(const py::dict & keywords) {
    SessionConfig config;
    apply(keywords, config, true);
    return config.sampling;
}

void check_callback(const std::string & event, const py::object & callback) {
    static const std::set<std::string> known = {"draft_length", "draft_token",  "draft_end",   "verify_layer",
                                                "verify_end",   "prompt_graph", "prompt_tail", "text_begin",
                                                "step_end",     "memory_full"};
    if (known.count(event) == 0) {
        std::string names;
        for (const auto & each : known) {
            names += (names.empty() ? "" : ", ") + each;
        }
        throw InputError("unknown event '" + event + "', known are " + names);
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
            callback(DraftToken{token, index, copy_of(routes)});
        };
    }
    if (const auto callback = find("draft_end")) {
        result.draft_end = [callback](const std::vector<int32_t> & draft, int64_t ns, const DraftRoutes * routes) {
            const py::gil_scoped_acquire acquire;
            callback(DraftEnd{copy_of(draft), ns, copy_of(routes)});
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
    return result;
}

void bind_events(py::module_ & m) {
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
        .def_readonly("upload_bytes", &Step::upload_bytes)
        .def_readonly("upload_ns", &Step::upload_ns)
        .def_readonly("n_drafted", &Step::n_drafted)
        .def_readonly("n_accepted", &Step::n_accepted)
        .def_readonly("n_verified", &Step::n_verified)
        .def_readonly("n_steps", &Step::n_steps)
        .def_readonly("draft_ns", &Step::draft_ns)
        .def_readonly("verify_ns", &Step::verify_ns)
        .def_readonly("sample_ns", &Step::sample_ns);

    py::class_<DraftToken>(m, "DraftToken", "The event of one drafted token.")
        .def_readonly("token", &DraftToken::token)
        .def_readonly("index", &DraftToken::index)
        .def_readonly("routes", &DraftToken::routes);
    py::class_<VerifyLayer>(m, "VerifyLayer", "The event of one MoE layer that a verification has passed.")
        .def_readonly("layer", &VerifyLayer::layer)
        .def_readonly("demand", &VerifyLayer::demand);
    py::class_<DraftEnd>(m, "DraftEnd", "The event of a finished draft, before it is verified.")
        .def_readonly("tokens", &DraftEnd::tokens)
        .def_readonly("draft_ns", &DraftEnd::draft_ns)
        .def_readonly("routes", &DraftEnd::routes);
}

} // namespace spac::bindings
