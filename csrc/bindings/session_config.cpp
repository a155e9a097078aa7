#include "bindings/session_holder.h"

#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <functional>
#include <map>
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
        SPAC_KEY("ngram_size_n", draft.ngram_size_n),
        SPAC_KEY("ngram_size_m", draft.ngram_size_m),
        SPAC_KEY("ngram_min_hits", draft.ngram_min_hits),
        SPAC_KEY("ngram_mod_n_match", draft.ngram_mod_n_match),
        SPAC_KEY("ngram_mod_n_min", draft.ngram_mod_n_min),
        SPAC_KEY("ngram_mod_n_max", draft.ngram_mod_n_max),
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
            throw InputError(std::string("unknown ") + (sampling_only ? "sampling" : "session") + " parameter '" +
                             name + "', known are " + known);
        }
        found->second.set(config, value);
    }
}

} // namespace

void apply_keywords(const py::dict & keywords, SessionConfig & config) { apply(keywords, config, false); }

SamplingConfig sampling_config(const py::dict & keywords) {
    SessionConfig config;
    apply(keywords, config, true);
    return config.sampling;
}

} // namespace spac::bindings
