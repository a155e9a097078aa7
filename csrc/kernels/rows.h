// Multiplies one expert's weights by the rows of input that were routed to it. ggml computes each pair (row of weights,
// row of input) by itself, and unpacks the weights anew for each. A verification of a few tokens routes one to four
// rows to an expert, so here weights are unpacked once for up to four. Results are ggml's, bit for bit: every lane does
// the same operations in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spac::kernels {

// A product of n_weights rows of weights and n_inputs rows of input.
struct Rows {
    int64_t              n; // elements of a row
    const char *         weights;
    size_t               stride; // bytes from one row of weights to the next
    int64_t              n_weights;
    const void * const * inputs;  // quantized to the type that ggml multiplies this one with
    float * const *      results; // for each input one float per row of weights
    int64_t              n_inputs;
};

// Computes the product. Returns false if ggml's quantization cannot have made an input from finite numbers. Then ggml
// has to compute the results.
using Dot = bool (*)(const Rows & rows);

// A variant of a product of rows: by ggml's own functions, by vectors of 256 bits that hold one row of weights, or
// by vectors of 512 bits that hold two rows.
enum class Variant : uint8_t { ggml, one, two };
constexpr int n_variants = 3;

// Computes the product by ggml's own functions: a chunk's rows of weights with one row of input, then with the next
// one.
void multiply_by_pairs(const Rows & rows, int type);

struct Kernel {
    std::array<Dot, n_variants> dot{};     // by variant; null where there is none
    int                         block = 0; // n is a multiple of it
};

// Returns the kernel of a ggml_type. A variant is null where there is none, or where its results are not ggml's on this
// machine: each is compared with ggml's own before it is used for the first time. `block` is 0 if all are null.
const Kernel & trusted_kernel(int type);
bool           quantization_is_trusted(); // the same for quantize_q8_K()

// Return all kernels for this processor, and those of them that are used, by ggml's names.
std::vector<std::string> kernel_names();
std::vector<std::string> trusted_kernel_names();
// Returns the ggml_type of a name, or -1 if there is no kernel for it.
int type_named(const std::string & name);

// The variants in use for a type of weights. The fastest one depends on the processor and on the type, and a
// measurement finds it (run_trial). Choices hold for the whole process. Until one is made for a type, the widest
// variant is used, and ggml's for one row of input where the widest has 256 bits.
struct Choice {
    Variant one = Variant::ggml, several = Variant::ggml; // for one row of input, and for more
    // The variant for several rows also computes dense matrices where ggml has kernels of its own for these, whose
    // results are the same (multiply_dense).
    bool dense = false;
};
Choice choice(int type);
void   choose(int type, Choice wanted); // a variant that is not trusted becomes ggml's
// Returns true if the chosen variant computes dense matrices with so many rows of input: always where ggml has no
// kernels of its own, never where the results of these are others.
bool computes_dense(int type, int64_t n_inputs);

// Switches kernels on or off for the whole process, while nothing computes: all threads of a graph have to agree. They
// are on at first. When they are off, ggml computes every pair.
void enable(bool on);
bool enabled();

// ggml's own kernels for a dense matrix and several rows of input (llamafile's), which it has for some types.
enum class Dense : uint8_t {
    none,      // ggml has no such kernels for the type
    equal,     // their results are those of ggml's products of pairs on this machine, bit for bit
    different, // they are not
};
Dense dense_kernels(int type);

// Computes rows by them. Rows of input lie one behind another, and so do rows of results. Returns false where ggml has
// none for the type or for this number of rows of input.
bool multiply_dense(const Rows & rows, int type);

// Quantizes a row of inputs to q8_K; n is a multiple of 256. Leaves the bytes in y that ggml's own code for x86 leaves:
// that code has no fused multiply-add, and leaves the sums of a block of zeros as they were. Works only where there are
// kernels.
void quantize_q8_K(const float * x, void * y, int64_t n);

// All kernels, by ggml's names of types.
extern const Kernel q4_K, q5_K, q6_K;
extern const Kernel q2_K, q3_K, iq4_xs;
extern const Kernel q8_0, q4_0, q5_0, iq4_nl, mxfp4, nvfp4, q4_1, q5_1;
extern const Kernel iq3_xxs, iq2_xxs, iq2_xs, iq2_s, iq3_s, iq1_s, iq1_m;

// Measures on this machine which variant is the fastest for a type of weights.
constexpr int trial_inputs = 8; // the most rows of input in a trial

// Seconds that one thread takes for the rows of one trial.
struct TrialTimes {
    std::array<double, n_variants> one,
        several;  // with one row of input, and with two and then eight; 0 without this variant
    double dense; // of ggml's kernels for dense matrices, with two and eight; 0 without them
};

struct Measured {
    std::vector<TrialTimes> times; // for each type
    double running; // the share of its time for which the least favoured thread ran: other programs took the rest
};

// Measures the variants of each ggml_type in turns, with `n_threads` threads that compute at once, each from memory of
// its own that no cache holds. Times are medians of several rounds. A type ends after `seconds`, but not before its
// third round. Throws std::bad_alloc if memory is lacking.
Measured run_trial(const std::vector<int> & types, int n_threads, double seconds);

// Returns the bytes of weights of a ggml_type that a thread multiplies in such a time.
size_t trial_bytes(int type);

} // namespace spac::kernels
