// Session's keyword arguments.
#pragma once

#include "session/session.h"

#include <pybind11/pybind11.h>

namespace spac::bindings {

// Fills `config` in from keyword arguments named as in llama.cpp. Throws InputError for an unknown one, listing those
// known, and for a value of the wrong type.
void apply_keywords(const pybind11::dict & keywords, SessionConfig & config);

// The same for the sampling parameters alone; what is not given has its default.
SamplingConfig sampling_config(const pybind11::dict & keywords);

} // namespace spac::bindings
