// Python's side of a loop: its parameters and callbacks.
#pragma once

#include "bindings/bindings.h"
#include "session/session.h"

#include <map>
#include <string>

namespace spac::bindings {

// Fills `config` in from keyword arguments, which have llama.cpp's names. Throws InputError for an unknown one, with a
// list of those known, and for a value of the wrong type.
void apply_keywords(const pybind11::dict & keywords, SessionConfig & config);

// Returns the sampling parameters that the keyword arguments describe. Those that are not given have their defaults.
// Throws InputError as apply_keywords() does.
SamplingConfig sampling_config(const pybind11::dict & keywords);

using Callbacks = std::map<std::string, pybind11::object>; // by event

// Throws InputError for an unknown event, with a list of those known. Throws it also for a callback that is neither
// None nor callable.
void check_callback(const std::string & event, const pybind11::object & callback);

// Returns listeners for the events in `callbacks`. Other events cost nothing. The listeners take the GIL, and borrow
// the callbacks.
Listeners listeners(const Callbacks & callbacks, bool keeps_draft_routes);

void bind_events(pybind11::module_ & m);

} // namespace spac::bindings
