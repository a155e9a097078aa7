// A session's events in Python: what callbacks are given, and the listeners that call them.
#pragma once

#include "session/session.h"

#include <pybind11/pybind11.h>

#include <map>
#include <string>

namespace spac::bindings {

using Callbacks = std::map<std::string, pybind11::object>; // by event

// Throws InputError for an event that is unknown, listing those known, and for a callback that is neither None nor
// something to call.
void check_callback(const std::string & event, const pybind11::object & callback);

// Listeners for the events that are in `callbacks` only: the others cost nothing. They take the GIL, and borrow the
// callbacks.
Listeners listeners(const Callbacks & callbacks, bool keeps_draft_routes = false);

void bind_session_events(pybind11::module_ & m);

} // namespace spac::bindings
