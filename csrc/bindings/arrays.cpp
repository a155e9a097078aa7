#include "bindings/bindings.h"

#include "core/error.h"

namespace py = pybind11;

namespace spac::bindings {

namespace {

std::string shape_text(const py::ssize_t * sizes, size_t n) {
    std::string text = "[";
    for (size_t i = 0; i < n; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    }
    return text + "]";
}

py::array_t<int32_t> read_only(py::array_t<int32_t> array) {
    array.attr("flags").attr("writeable") = false;
    return array;
}

} // namespace

std::string describe(py::handle object) {
    if (!py::isinstance<py::array>(object)) {
        return py::str(py::type::handle_of(object).attr("__name__"));
    }
    const auto        array = py::reinterpret_borrow<py::array>(object);
    const std::string text =
        std::string(py::str(array.dtype())) + shape_text(array.shape(), static_cast<size_t>(array.ndim()));
    return (array.flags() & py::array::c_style) != 0 ? text : text + " not in C order";
}

const int32_t * int32_data(const py::object & object, const char * name, const Shape & shape) {
    if (py::array_t<int32_t, py::array::c_style>::check_(object)) {
        const auto array = py::reinterpret_borrow<py::array_t<int32_t>>(object);
        if (Shape(array.shape(), array.shape() + array.ndim()) == shape) {
            return array.data();
        }
    }
    throw InputError(std::string(name) + " is " + describe(object) + ", expected int32" +
                     shape_text(shape.data(), shape.size()) + " in C order");
}

std::vector<int32_t> token_list(const py::object & object, const char * name) {
    if (py::array_t<int32_t, py::array::c_style>::check_(object)) {
        const auto array = py::reinterpret_borrow<py::array_t<int32_t>>(object);
        if (array.ndim() == 1) {
            return {array.data(), array.data() + array.size()};
        }
    } else if (!py::isinstance<py::array>(object) && py::isinstance<py::sequence>(object)) {
        try {
            std::vector<int32_t> tokens;
            for (const auto & item : py::reinterpret_borrow<py::sequence>(object)) {
                tokens.push_back(item.cast<int32_t>());
            }
            return tokens;
        } catch (const py::cast_error &) {
            throw InputError(std::string(name) + " holds something else than 32-bit integers");
        }
    }
    throw InputError(std::string(name) + " is " + describe(object) + ", expected int32[n] or a sequence of integers");
}

py::array_t<int32_t> int32_view(const int32_t * data, const Shape & shape, const py::object & owner) {
    return read_only(py::array_t<int32_t>(shape, data, owner));
}

py::array_t<int32_t> int32_view(std::shared_ptr<const std::vector<int32_t>> data, const Shape & shape) {
    if (data == nullptr || data->empty()) {
        return read_only(py::array_t<int32_t>(shape));
    }
    using Holder          = std::shared_ptr<const std::vector<int32_t>>;
    const auto *      ptr = data->data();
    const py::capsule owner(new Holder(std::move(data)), [](void * holder) { delete static_cast<Holder *>(holder); });
    return read_only(py::array_t<int32_t>(shape, ptr, owner));
}

} // namespace spac::bindings
