// Times of steps by batch size. python/spac/governor/times.py says what it means and has it in numpy; that is the
// reference, and results are equal to the bit (but for a compiler that contracts a * b + c in numpy's own interp).
#pragma once

#include <cstddef>
#include <vector>

namespace spac {

struct SizeTimesOptions {
    int                 kept;      // observations of a size; their median is its time
    double              plausible; // times that of a larger size, at most
    double              most, beyond, aging;
    std::vector<double> doubt; // [kept + 1] by observations
};

class SizeTimes {
  public:
    SizeTimes(int n, const SizeTimesOptions & options);

    int  n() const { return static_cast<int>(sizes_.size()); }
    void start(std::vector<double> times); // of the first sizes, as many as there are
    void add(int size, double seconds, int step, bool passing, double speed);
    bool has(int size) const;
    void shift(const double * seconds);                                          // [n]
    void estimate(const double * extra, double * times) const;                   // [n] each
    void doubt(const double * total, int step, double speed, double * by) const; // [n] each

  private:
    struct Size {
        std::vector<double> kept; // the latest last
        double              passing, time;
        int                 seen  = 0; // the step of the last observation
        double              speed = 1; // its unit
    };
    struct Known {
        double size, time, weight;
    };

    size_t             place(int size) const;
    std::vector<Known> known() const;

    SizeTimesOptions    options_;
    std::vector<Size>   sizes_;
    std::vector<double> before_;
};

} // namespace spac
