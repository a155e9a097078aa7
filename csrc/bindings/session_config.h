// Readers of Session's keyword arguments.
#pragma once

#include "session/session.h"

#include <pybind11/pybind11.h>

namespace spac::bindings {

// Fills `config` in from keyword arguments, which have llama.cpp's names. Throws InputError for an unknown one, with a
// list of those known, and for a value of the wrong type.
void apply_keywords(const pybind11::dict & keywords, SessionConfig & config);

// Returns the sampling parameters that the keyword arguments describe. Those that are not given have their defaults.
// Throws InputError as apply_keywords() does.
SamplingConfig sampling_config(const pybind11::dict & keywords);

} // namespace spac::bindings
