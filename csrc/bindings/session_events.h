// A session's events in Python: the arguments of callbacks, and the listeners that call them.
#pragma once

#include "session/session.h"

#include <pybind11/pybind11.h>

#include <map>
#include <string>

namespace spac::bindings {

using Callbacks = std::map<std::string, pybind11::object>; // by event

// Throws InputError for an unknown event, with a list of those known. Throws it also for a callback that is neither
// None nor callable.
void check_callback(const std::string & event, const pybind11::object & callback);

// Returns listeners for the events in `callbacks`. Other events cost nothing. The listeners take the GIL, and borrow
// the callbacks.
Listeners listeners(const Callbacks & callbacks, bool keeps_draft_routes = false);

void bind_session_events(pybind11::module_ & m);

} // namespace spac::bindings
