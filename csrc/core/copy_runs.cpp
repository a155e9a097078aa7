#include "core/copy_runs.h"

namespace spac {

std::vector<CopyRun> copy_runs(const std::vector<int32_t> & slot_of, size_t expert_bytes, size_t copy_bytes) {
    std::vector<CopyRun> runs;
    const int            n        = static_cast<int>(slot_of.size());
    const auto           add_link = [&](int first, int count) {
        if (!runs.empty() && runs.back().slot < 0) {
            runs.back().count += count;
        } else {
            runs.push_back({first, count, -1});
        }
    };
    for (int first = 0, end = 0; first < n; first = end) {
        while (end < n && (slot_of[end] < 0) == (slot_of[first] < 0)) {
            ++end;
        }
        const auto count = static_cast<size_t>(end - first);
        // Copying slots takes a copy for each of them, and one for what follows them over the link.
        if (slot_of[first] < 0 || count * expert_bytes <= (count + 1) * copy_bytes) {
            add_link(first, end - first);
            continue;
        }
        for (int e = first; e < end; ++e) {
            if (e > first && slot_of[e] == slot_of[e - 1] + 1) {
                ++runs.back().count;
            } else {
                runs.push_back({e, 1, slot_of[e]});
            }
        }
    }
    return runs;
}

} // namespace spac
