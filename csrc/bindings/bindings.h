// Declarations that the binding files share: one function for each file, and checked numpy arrays.
#pragma once

#include "core/error.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

void bind_llama(pybind11::module_ & m);
void bind_kernels(pybind11::module_ & m);
void bind_devices(pybind11::module_ & m);
void bind_remote(pybind11::module_ & m);
void bind_trace(pybind11::module_ & m);
void bind_machine(pybind11::module_ & m);
void bind_experts(pybind11::module_ & m);
void bind_tap(pybind11::module_ & m);
void bind_slot_table(pybind11::module_ & m);
void bind_logistic(pybind11::module_ & m);
void bind_prompts(pybind11::module_ & m);
void bind_parallel(pybind11::module_ & m);
void bind_server(pybind11::module_ & m);

namespace spac::bindings {

using Shape = std::vector<pybind11::ssize_t>;

// Returns the data of an int32 array of exactly this shape, in C order. The array keeps the data. Throws InputError,
// which names `name`, the expected type and shape, and the given ones.
const int32_t * int32_data(const pybind11::object & object, const char * name, const Shape & shape);

// Returns the tokens in a one-dimensional int32 array, or in any sequence of integers. Throws InputError for anything
// else.
std::vector<int32_t> token_list(const pybind11::object & object, const char * name);

// Returns an array with a copy of the numbers.
template <typename T> pybind11::array_t<T> copy_of(const std::vector<T> & numbers) {
    return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(numbers.size()), numbers.data());
}

// Returns a read-only array on data that `owner` keeps alive.
pybind11::array_t<int32_t> int32_view(const int32_t * data, const Shape & shape, const pybind11::object & owner);

// Returns a read-only array on a shared buffer. The array is empty if there is no buffer.
pybind11::array_t<int32_t> int32_view(std::shared_ptr<const std::vector<int32_t>> data, const Shape & shape);

// Describes an argument for messages: "int32[2, 3]" for an array, else the type's name.
std::string describe(pybind11::handle object);

// Returns the data of one of the arrays in a dict, to be changed in place. The array has this type and size, is in C
// order, and keeps the data. Throws InputError, which names the array.
template <typename T> T * owned_data(const pybind11::dict & arrays, const char * name, pybind11::ssize_t size) {
    const pybind11::object object = arrays[name];
    if (pybind11::array_t<T, pybind11::array::c_style>::check_(object)) {
        auto array = pybind11::reinterpret_borrow<pybind11::array_t<T, pybind11::array::c_style>>(object);
        if (array.size() == size) {
            return const_cast<T *>(array.data());
        }
    }
    throw InputError(std::string(name) + " is " + describe(object) + ", expected another type or " +
                     std::to_string(size) + " numbers");
}

// Returns a message as Python text. It may quote any bytes from a file.
pybind11::str message(const std::string & text);

} // namespace spac::bindings
