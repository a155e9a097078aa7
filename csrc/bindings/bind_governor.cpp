// What the governor learns and solves at every step.
#include "bindings/bindings.h"
#include "core/acceptance.h"
#include "core/demand_share.h"
#include "core/error.h"
#include "core/roofline.h"
#include "core/size_times.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <functional>

namespace py = pybind11;

namespace {

using spac::Acceptance;
using spac::SizeTimes;
using spac::bindings::owned_data;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

const double * data_of(const Doubles & array, const char * name, py::ssize_t size) {
    if (array.size() != size) {
        throw spac::InputError(std::string(name) + " has " + std::to_string(array.size()) + " numbers, expected " +
                               std::to_string(size));
    }
    return array.data();
}

py::tuple estimate(Acceptance & acceptance) {
    py::array_t<double> rates(acceptance.n()), trials(acceptance.n());
    acceptance.estimate(rates.mutable_data(), trials.mutable_data());
    return py::make_tuple(rates, trials);
}

py::array_t<double> estimate_times(const SizeTimes & times, const Doubles & extra) {
    py::array_t<double> result(times.n());
    times.estimate(data_of(extra, "extra", times.n()), result.mutable_data());
    return result;
}

py::array_t<double> doubt(const SizeTimes & times, const Doubles & total, int step, double speed) {
    py::array_t<double> result(times.n());
    times.doubt(data_of(total, "total", times.n()), step, speed, result.mutable_data());
    return result;
}

py::tuple curve(const Doubles & accept, const Doubles & go_on, double draft_base, double draft_token,
                const Doubles & verify, const Doubles & misses, double price) {
    const py::ssize_t                  n = accept.size();
    std::array<py::array_t<double>, 5> rows;
    for (auto & row : rows) {
        row = py::array_t<double>(n + 1);
    }
    const spac::RooflineCosts costs = {draft_base, draft_token, data_of(verify, "verify", n + 1),
                                       data_of(misses, "misses", n + 1), price};
    spac::roofline_curve(static_cast<int>(n), accept.data(), data_of(go_on, "go_on", n), costs,
                         {rows[0].mutable_data(), rows[1].mutable_data(), rows[2].mutable_data(),
                          rows[3].mutable_data(), rows[4].mutable_data()});
    return py::make_tuple(rows[0], rows[1], rows[2], rows[3], rows[4]);
}

class DemandShare {
  public:
    explicit DemandShare(const py::dict & arrays) : arrays_(arrays) {
        const auto share = py::cast<py::array>(arrays["share"]);
        shape_.assign(share.shape(), share.shape() + share.ndim());
        size_   = share.size();
        share_  = owned_data<double>(arrays, "share", size_);
        demand_ = owned_data<int32_t>(arrays, "demand", size_);
    }

    void add(const py::object & demand) const {
        const int32_t * data = spac::bindings::int32_data(demand, "demand", shape_);
        std::transform(demand_, demand_ + size_, data, demand_, std::plus<>());
    }

    py::array_t<double> renew(const py::array_t<bool, py::array::c_style> & resident, int n_tokens, double kept,
                              int n_bins) const {
        if (n_tokens < 1 || n_bins < 1 || resident.size() != size_) {
            throw spac::InputError("shares are renewed by tokens, and by who is resident of all experts");
        }
        py::array_t<double> bins(n_bins);
        spac::renew_shares(share_, demand_, resident.data(), static_cast<size_t>(size_), n_tokens, kept,
                           bins.mutable_data(), n_bins);
        return bins;
    }

  private:
    py::dict              arrays_; // keeps them
    spac::bindings::Shape shape_;
    py::ssize_t           size_   = 0;
    double *              share_  = nullptr;
    int32_t *             demand_ = nullptr;
};

} // namespace

void bind_governor(py::module_ & m) {
    py::class_<Acceptance>(m, "Acceptance", "How often drafted tokens are accepted, by position.")
        .def(py::init([](int n, double prior, const std::array<double, 6> & options) {
                 if (n < 0) {
                     throw spac::InputError("acceptance is learnt of at least 0 positions");
                 }
                 return Acceptance(n, prior, {options[0], options[1], options[2], options[3], options[4], options[5]});
             }),
             py::arg("n"), py::arg("prior"), py::arg("options"))
        .def("age", &Acceptance::age, py::arg("steps") = 1)
        .def("observe", &Acceptance::observe, py::arg("n_success"), py::arg("failed"))
        .def("estimate", &estimate);
    py::class_<SizeTimes>(m, "SizeTimes", "Times of steps by batch size.")
        .def(py::init([](int n, int kept, const std::array<double, 4> & options, std::vector<double> doubts) {
                 if (n < 1 || kept < 2 || doubts.size() != static_cast<size_t>(kept) + 1) {
                     throw spac::InputError("times are kept of at least one size, with a doubt for every number kept");
                 }
                 return SizeTimes(n, {kept, options[0], options[1], options[2], options[3], std::move(doubts)});
             }),
             py::arg("n"), py::arg("kept"), py::arg("options"), py::arg("doubts"))
        .def("start", &SizeTimes::start, py::arg("times"))
        .def("add", &SizeTimes::add, py::arg("size"), py::arg("seconds"), py::arg("step"), py::kw_only(),
             py::arg("passing") = false, py::arg("speed") = 1.0)
        .def("has", &SizeTimes::has, py::arg("size"))
        .def("estimate", &estimate_times, py::arg("extra"))
        .def(
            "shift",
            [](SizeTimes & self, const Doubles & seconds) { self.shift(data_of(seconds, "seconds", self.n())); },
            py::arg("seconds"))
        .def("doubt", &doubt, py::arg("total"), py::arg("step"), py::arg("speed"));
    py::class_<DemandShare>(m, "DemandShare", "The share of the latest tokens that wants an expert.")
        .def(py::init<const py::dict &>(), py::arg("arrays"))
        .def("add", &DemandShare::add, py::arg("demand"))
        .def("renew", &DemandShare::renew, py::arg("resident"), py::arg("n_tokens"), py::arg("kept"),
             py::arg("n_bins"));
    m.def("roofline_curve", &curve, py::arg("accept"), py::arg("go_on"), py::arg("draft_base"), py::arg("draft_token"),
          py::arg("verify"), py::arg("misses"), py::arg("price"));
}
