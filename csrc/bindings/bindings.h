// What the binding files share: one function per room, and checked numpy arrays.
#pragma once

#include "core/error.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

void bind_library(pybind11::module_ & m);
void bind_kernels(pybind11::module_ & m);
void bind_errors(pybind11::module_ & m);
void bind_devices(pybind11::module_ & m);
void bind_trace(pybind11::module_ & m);
void bind_huge_pages(pybind11::module_ & m);
void bind_threads(pybind11::module_ & m);
void bind_experts(pybind11::module_ & m);
void bind_tap(pybind11::module_ & m);
void bind_slot_table(pybind11::module_ & m);
void bind_moe_spac(pybind11::module_ & m);
void bind_logistic(pybind11::module_ & m);
void bind_chat_format(pybind11::module_ & m);
void bind_session(pybind11::module_ & m);

namespace spac::bindings {

using Shape = std::vector<pybind11::ssize_t>;

// The data of an int32 array of exactly this shape, in C order. Throws InputError naming `name`, what was expected and
// what was given. The array keeps the data.
const int32_t * int32_data(const pybind11::object & object, const char * name, const Shape & shape);

// The tokens in a one-dimensional int32 array, or in any sequence of integers. Throws InputError.
std::vector<int32_t> token_list(const pybind11::object & object, const char * name);

// A read-only array on data that `owner` keeps alive.
pybind11::array_t<int32_t> int32_view(const int32_t * data, const Shape & shape, const pybind11::object & owner);

// A read-only array on a shared buffer. An empty one where there is none.
pybind11::array_t<int32_t> int32_view(std::shared_ptr<const std::vector<int32_t>> data, const Shape & shape);

// What an argument is, for messages: "int32[2, 3]" for arrays, else the type's name.
std::string describe(pybind11::handle object);

// The data of one of the arrays in a dict, of this type and size, in C order, to be changed in place. Throws InputError
// naming it. The array keeps the data.
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

// A message as Python text, whatever bytes it quotes from a file.
pybind11::str message(const std::string & text);

} // namespace spac::bindings
