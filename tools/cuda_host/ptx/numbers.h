// PTX's arithmetic in C++: registers are unsigned words, and an operation gives them a type.
#pragma once

#include "lanes.h"

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

namespace ptx {

using f16 = _Float16;
using f32 = float;
using f64 = double;

// bfloat16, with float's arithmetic.
struct bf16 {
    uint16_t word = 0;

    bf16() = default;
    explicit bf16(double value) {
        const f32 rounded = static_cast<f32>(value);
        uint32_t  w       = bits<uint32_t>(rounded);
        word              = std::isnan(rounded) ? 0x7FFF : static_cast<uint16_t>((w + 0x7FFF + (w >> 16 & 1)) >> 16);
    }
    operator f32() const { return bits<f32>(uint32_t{word} << 16); }
};

// An unsigned integer of T's width.
template <typename T>
using WordOf = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// Reads a register as T: a float of its width, or its low part as an integer.
template <typename T, typename R> T as(R word) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(word);
    } else {
        return bits<T>(static_cast<WordOf<T>>(word));
    }
}

// Returns the content of register R after T was written to it.
template <typename R, typename T> R word(T value) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<R>(value); // signed types extend their sign
    } else {
        return static_cast<R>(bits<WordOf<T>>(value));
    }
}

template <typename T>
constexpr bool is_float =
    std::is_same_v<T, f16> || std::is_same_v<T, bf16> || std::is_same_v<T, f32> || std::is_same_v<T, f64>;
template <typename T>
using Wide =
    std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                       std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                          std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;
template <typename T> using Unsigned = std::make_unsigned_t<T>;

enum class Round { rn, rz };

template <typename T, Round round, typename X> T rounded(X exact) {
    static_assert(round == Round::rn || sizeof(T) < sizeof(f64), "doubles are rounded to the nearest number");
    const T near = static_cast<T>(exact);
    if (round == Round::rz && std::fabs(static_cast<f64>(near)) > std::fabs(static_cast<f64>(exact))) {
        return bits<T>(static_cast<WordOf<T>>(bits<WordOf<T>>(near) - 1));
    }
    return near;
}

// Computes f with the floats, or in double precision where that has to be rounded.
template <typename T, Round round, typename F> T computed(F f, T a, T b) {
    if constexpr (round == Round::rn && !std::is_same_v<T, bf16>) {
        return f(a, b);
    } else {
        return rounded<T, round>(f(static_cast<double>(a), static_cast<double>(b)));
    }
}
template <typename T, Round round = Round::rn> T add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
    } else {
        return computed<T, round>(std::plus<>(), a, b);
    }
}
template <typename T, Round round = Round::rn> T sub(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
    } else {
        return computed<T, round>(std::minus<>(), a, b);
    }
}
template <typename T, Round round = Round::rn> T mul(T a, T b) { return computed<T, round>(std::multiplies<>(), a, b); }
template <typename T, Round round = Round::rn> T fma(T a, T b, T c) {
    if constexpr (std::is_same_v<T, f64>) {
        return __builtin_fma(a, b, c);
    } else if constexpr (std::is_same_v<T, f32> && round == Round::rn) {
        return __builtin_fmaf(a, b, c);
    } else {
        return rounded<T, round>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
    }
}
template <typename T> T mul_lo(T a, T b) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>; // 16 bits would be promoted to int
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
}
template <typename T> T mul_hi(T a, T b) {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b) >> (8 * sizeof(T)));
}
template <typename T> Wide<T> mul_wide(T a, T b) { return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b); }

template <typename T> T divide(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        if (b == 0) {
            return static_cast<T>(-1);
        }
        return std::is_signed_v<T> && b == static_cast<T>(-1) ? sub(T{0}, a) : static_cast<T>(a / b);
    } else {
        return static_cast<T>(a / b);
    }
}
template <typename T> T remainder_of(T a, T b) {
    return b == 0 ? a : std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
}
template <typename T> bool nan(T x) {
    if constexpr (is_float<T>) {
        return std::isnan(static_cast<f64>(x));
    }
    return false;
}
// A NaN is left out, or with `keeps_nan` the result.
template <bool keeps_nan = false, typename T> T minimum(T a, T b) {
    return nan(a) ? (keeps_nan ? a : b) : nan(b) ? (keeps_nan ? b : a) : b < a ? b : a;
}
template <bool keeps_nan = false, typename T> T maximum(T a, T b) {
    return nan(a) ? (keeps_nan ? a : b) : nan(b) ? (keeps_nan ? b : a) : a < b ? b : a;
}
template <typename T> constexpr WordOf<T> sign_bit = WordOf<T>{1} << (8 * sizeof(T) - 1);
template <typename T> T                   negate(T a) {
                      if constexpr (std::is_integral_v<T>) {
                          return sub(T{0}, a);
    } else {
                          return bits<T>(static_cast<WordOf<T>>(bits<WordOf<T>>(a) ^ sign_bit<T>));
    }
}
template <typename T> T magnitude(T a) {
    if constexpr (std::is_integral_v<T>) {
        return a < 0 ? sub(T{0}, a) : a;
    } else {
        return bits<T>(static_cast<WordOf<T>>(bits<WordOf<T>>(a) & ~sign_bit<T>));
    }
}
template <typename T> T saturate(T a) { return nan(a) || !(a > T(0)) ? T(0) : a > T(1) ? T(1) : a; }

// Computes two halves of a word at a time.
template <typename H, typename F> uint32_t by_halves(F f, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
    const auto half = [](uint32_t w, int i) { return bits<H>(static_cast<uint16_t>(w >> (16 * i))); };
    uint32_t   all  = 0;
    for (int i = 0; i < 2; ++i) {
        all |= uint32_t{bits<uint16_t>(f(half(a, i), half(b, i), half(c, i)))} << (16 * i);
    }
    return all;
}

// Shifts by more than the width do not wrap around.
template <typename T> T shift_left(T a, uint32_t n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << n);
}
template <typename T> T shift_right(T a, uint32_t n) {
    const uint32_t last = 8 * sizeof(T) - 1;
    return n > last ? static_cast<T>(std::is_signed_v<T> && a < 0 ? -1 : 0) : static_cast<T>(a >> n);
}
inline uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t n, bool wraps) {
    n = wraps ? n & 31 : std::min(n, 32U);
    return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << n) >> 32);
}
inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n, bool wraps) {
    n = wraps ? n & 31 : std::min(n, 32U);
    return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> n);
}
inline uint32_t logic(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t r = 0;
    for (int i = 0; i < 8; ++i) {
        if ((table >> i & 1) != 0) {
            r |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
        }
    }
    return r;
}
template <typename T> T field(T a, uint32_t position, uint32_t length) {
    constexpr uint32_t width = 8 * sizeof(T);
    const uint32_t     n = length & 255, spare = n < width ? width - n : 0;
    return n == 0 ? T{0} : shift_right(shift_left(shift_right(a, position & 255), spare), spare);
}
template <typename T> T insert(T a, T b, uint32_t position, uint32_t length) {
    const T ones = static_cast<T>(~shift_left(static_cast<T>(~T{0}), length & 255));
    const T mask = shift_left(ones, position & 255);
    return static_cast<T>((b & ~mask) | (shift_left(a, position & 255) & mask));
}
inline uint32_t mask_of_bits(uint32_t position, uint32_t length, bool wraps) {
    if (wraps) {
        position &= 31, length &= 31;
    }
    return shift_left(length >= 32 ? ~0U : (1U << length) - 1, position);
}
inline uint32_t reverse(uint32_t a) {
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) {
        r |= (a >> i & 1) << (31 - i);
    }
    return r;
}
inline uint32_t leading_zeros(uint64_t a, uint32_t width) {
    return a == 0 ? width : static_cast<uint32_t>(__builtin_clzll(a)) - (64 - width);
}
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = uint64_t{b} << 32 | a;
    uint32_t       r    = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t s    = selector >> (4 * i) & 15;
        uint32_t       byte = static_cast<uint32_t>(both >> (8 * (s & 7)) & 255);
        if ((s & 8) != 0) {
            byte = (byte & 128) != 0 ? 255 : 0;
        }
        r |= byte << (8 * i);
    }
    return r;
}
template <typename A, typename B> int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
    uint32_t sum = static_cast<uint32_t>(c);
    for (int i = 0; i < 4; ++i) {
        sum += static_cast<uint32_t>(int32_t{static_cast<A>(a >> (8 * i))} * int32_t{static_cast<B>(b >> (8 * i))});
    }
    return static_cast<int32_t>(sum);
}

enum class Whole { none, near, zero, down, up };

template <typename T> T whole(T x, Whole mode) {
    const auto d = static_cast<double>(x);
    return mode == Whole::near   ? static_cast<T>(std::nearbyint(d))
           : mode == Whole::zero ? static_cast<T>(std::trunc(d))
           : mode == Whole::down ? static_cast<T>(std::floor(d))
           : mode == Whole::up   ? static_cast<T>(std::ceil(d))
                                 : x;
}

// cvt: floats to integers stop at the integers' limits, NaN becomes 0.
template <typename To, typename From, Whole mode = Whole::none, Round round = Round::rn> To convert(From x) {
    if constexpr (std::is_integral_v<To> && is_float<From>) {
        const double d = static_cast<double>(whole(x, mode));
        if (std::isnan(d)) {
            return 0;
        }
        if (d >= std::ldexp(1.0, std::numeric_limits<To>::digits)) {
            return std::numeric_limits<To>::max();
        }
        return d <= static_cast<double>(std::numeric_limits<To>::min()) ? std::numeric_limits<To>::min()
                                                                        : static_cast<To>(d);
    } else if constexpr (std::is_integral_v<To>) {
        return static_cast<To>(x);
    } else if constexpr (std::is_integral_v<From> && !(std::is_same_v<To, f32> && round == Round::rn)) {
        return rounded<To, round>(static_cast<double>(x));
    } else if constexpr (std::is_integral_v<From>) {
        return static_cast<f32>(x);
    } else if constexpr (std::is_same_v<To, From>) {
        return whole(x, mode);
    } else {
        return rounded<To, round>(whole(x, mode));
    }
}
template <typename To, typename From> To convert_limited(From x) {
    using Limits    = std::numeric_limits<To>;
    const auto wide = static_cast<__int128>(x);
    return wide > Limits::max() ? Limits::max() : wide < Limits::min() ? Limits::min() : static_cast<To>(x);
}
template <typename T> T add_limited(T a, T b) { return convert_limited<T>(int64_t{a} + int64_t{b}); }
template <typename T> T sub_limited(T a, T b) { return convert_limited<T>(int64_t{a} - int64_t{b}); }

} // namespace ptx
