// The n-th largest of many integers, and their order, in time that grows with their number alone: comparing all of
// them with each other would be branches that nobody can predict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spac {

// The n-th largest of `values`, 1 <= n <= their number; where some are equal, each counts.
int32_t nth_largest(const std::vector<int32_t> & values, size_t n);

// Of n flags, which belong to the `n_largest` largest of the values; of equal ones, the first. All where there are no
// more.
std::vector<char> are_largest(const std::vector<int32_t> & values, size_t n_largest);

// Places of the values, the least first; equal ones stay in order. Values are 0 to 2^22 - 1.
std::vector<int32_t> sorted_places(const std::vector<int32_t> & values);

} // namespace spac
