// Bindings of llama.cpp's models, contexts and log. Python owns the objects, whose addresses are integers, and frees a
// context before its model.
#include "bindings/bindings.h"
#include "session/grammar.h"
#include "session/llama_models.h"
#include "session/prompt_graph.h"
#include "session/session.h"

#include <pybind11/stl.h>

#include <exception>
#include <optional>

namespace py = pybind11;
using py::gil_scoped_acquire;
using py::gil_scoped_release;
using spac::Address;
using spac::bindings::copy_of;

namespace {

using Release = py::call_guard<gil_scoped_release>;

// The callback is never freed, because the library may log until the process ends.
py::object & listener() {
    static auto * const object = new py::object;
    return *object;
}

void on_log(int level, const char * text) {
    if (Py_IsInitialized() == 0) {
        return;
    }
    const gil_scoped_acquire acquire;
    try {
        listener()(level, py::bytes(text));
    } catch (py::error_already_set & error) {
        if (error.matches(PyExc_KeyboardInterrupt)) {
            PyErr_SetInterrupt(); // An exception must not pass through the library. Python raises it again later.
        } else {
            error.discard_as_unraisable("spac's log");
        }
    }
}

void log_to(py::object callback) {
    listener() = std::move(callback);
    spac::log_to(on_log);
}

// Returns a number of Python's, or False. A bool is also an int, so it comes first.
bool as_number(py::handle value, spac::FieldValue & number) {
    if (py::isinstance<py::bool_>(value)) {
        number = value.cast<bool>();
    } else if (PyFloat_Check(value.ptr())) {
        number = value.cast<double>();
    } else if (PyIndex_Check(value.ptr())) {
        number = value.cast<int64_t>();
    } else {
        return false;
    }
    return true;
}

spac::Fields fields_of(const py::dict & values) {
    spac::Fields fields;
    for (const auto & [key, value] : values) {
        const auto name = key.cast<std::string>();
        if (!as_number(value, fields[name])) {
            throw spac::InputError(name + ": " + py::repr(value).cast<std::string>() + " is no number");
        }
    }
    return fields;
}

spac::Overrides overrides_of(const py::dict & values) {
    spac::Overrides overrides;
    for (const auto & [key, value] : values) {
        spac::FieldValue number;
        auto &           entry = overrides.emplace_back(key.cast<std::string>(), false);
        if (as_number(value, number)) {
            std::visit([&](auto each) { entry.second = each; }, number);
        } else {
            entry.second = value.cast<std::string>();
        }
    }
    return overrides;
}

Address load_model(const std::string & path, const std::vector<Address> & devices, const py::dict & given,
                   const py::object & progress) {
    const py::dict             values(given.attr("copy")());
    const auto                 overrides = overrides_of(values.attr("pop")("kv_overrides", py::dict()));
    const auto                 split     = values.attr("pop")("layer_split", py::list()).cast<std::vector<float>>();
    const auto                 fields    = fields_of(values);
    std::function<bool(float)> report;
    std::exception_ptr         error; // It cannot pass through the library. Loading stops, and it is thrown after that.
    if (!progress.is_none()) {
        report = [&](float done) {
            const gil_scoped_acquire acquire;
            try {
                return progress(done).cast<bool>();
            } catch (...) {
                error = std::current_exception();
                return false;
            }
        };
    }
    Address model = 0;
    {
        const gil_scoped_release release;
        model = spac::load_model(path, devices, fields, overrides, split, report);
        if (error != nullptr && model != 0) {
            spac::free_model(model);
        }
    }
    if (error != nullptr) {
        std::rethrow_exception(error);
    }
    return model;
}

Address new_context(Address model, const py::dict & values) {
    const auto               fields = fields_of(values);
    const gil_scoped_release release;
    return spac::new_context(model, fields);
}

py::array_t<int32_t> tokenize(Address model, const std::string & text, bool special) {
    std::vector<int32_t> tokens;
    {
        const gil_scoped_release release;
        tokens = spac::tokenize(model, text, special);
    }
    return copy_of(tokens);
}

int decode(Address context, const py::object & tokens, int position, bool logits) {
    const auto               list = spac::bindings::token_list(tokens, "tokens");
    const gil_scoped_release release;
    return spac::decode(context, list, position, logits);
}

py::array_t<float> logits(Address context, py::ssize_t n_rows) {
    std::pair<const float *, int> found;
    {
        const gil_scoped_release release;
        found = spac::logits(context);
    }
    return py::array_t<float>({n_rows, py::ssize_t{found.second}}, found.first);
}

} // namespace

void bind_llama(py::module_ & m) {
    using py::arg;
    spac::start_llama();
    m.def("log_to", &log_to, arg("callback"));
    for (const auto & [name, value] : spac::llama_constants()) {
        m.attr(name.c_str()) = value;
    }

    m.def("load_model", &load_model, arg("path"), arg("devices"), arg("values"), arg("progress") = py::none());
    m.def("free_model", &spac::free_model, arg("model"), Release());
    m.def("model_layers", &spac::model_layers, arg("model"));
    m.def("model_extra_layers", &spac::model_extra_layers, arg("model"));
    m.def("model_bytes", &spac::model_bytes, arg("model"));
    m.def(
        "model_description", [](Address model) { return spac::bindings::message(spac::model_description(model)); },
        arg("model"));
    m.def("model_has_encoder", &spac::model_has_encoder, arg("model"));
    m.def("model_is_recurrent", &spac::model_is_recurrent, arg("model"));
    m.def("model_has_window", &spac::model_has_window, arg("model"));
    m.def(
        "chat_template", [](Address model) { return py::bytes(spac::chat_template(model)); }, arg("model"));

    m.def("model_vocabulary", &spac::model_vocabulary, arg("model"));
    m.def("n_model_tokens", &spac::n_model_tokens, arg("model"));
    m.def("begin_token", &spac::begin_token, arg("model"));
    m.def("adds_begin", &spac::adds_begin, arg("model"));
    m.def("is_end", &spac::is_end, arg("model"), arg("token"));
    m.def(
        "token_text", [](Address model, int token) { return py::bytes(spac::token_text(model, token)); }, arg("model"),
        arg("token"));
    m.def(
        "token_piece",
        [](Address vocabulary, int token, bool special) {
            return py::bytes(spac::token_piece(vocabulary, token, special));
        },
        arg("vocabulary"), arg("token"), arg("special"));
    m.def("tokenize", &tokenize, arg("model"), arg("text"), arg("special"));

    m.def("new_context", &new_context, arg("model"), arg("values"));
    m.def("free_context", &spac::free_context, arg("context"), Release());
    m.def("context_size", &spac::context_size, arg("context"));
    m.def("context_threads", &spac::context_threads, arg("context"));
    m.def("graph_tokens", &spac::graph_tokens, arg("context"));
    m.def("batch_tokens", &spac::batch_tokens, arg("context"));
    m.def("load_adapter", &spac::load_adapter, arg("model"), arg("path"), Release());
    m.def("apply_adapters", &spac::apply_adapters, arg("context"), arg("adapters"), arg("scales"), Release());

    m.def("rehearse", &spac::rehearse, arg("context"), arg("n_tokens"), Release());
    m.def("decode", &decode, arg("context"), arg("tokens"), arg("position"), arg("logits"));
    m.def("logits", &logits, arg("context"), arg("n_rows"));
    m.def("synchronize", &spac::synchronize, arg("context"), Release());
    m.def(
        "vocab_mismatch",
        [](Address target, Address draft) -> std::optional<py::str> {
            const auto reason = spac::vocab_mismatch(reinterpret_cast<void *>(target), reinterpret_cast<void *>(draft));
            return reason ? std::optional(spac::bindings::message(*reason)) : std::nullopt;
        },
        arg("target_model"), arg("draft_model"));
    m.def(
        "graph_bytes",
        [](Address context, int n_tokens) {
            return spac::graph_bytes(reinterpret_cast<llama_context *>(context), n_tokens);
        },
        arg("context"), arg("n_tokens"), Release());
    m.def("grammar_of_schema", &spac::grammar_of_schema, arg("schema"), Release());
    m.def(
        "check_grammar", [](Address model, const std::string & text) { spac::check_grammar(model, text); },
        arg("model"), arg("text"), Release());
    m.def("take_grammar_fault", &spac::take_grammar_fault);
}
