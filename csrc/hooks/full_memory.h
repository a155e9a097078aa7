// The function that ends one request when the memory of all slots of llama.cpp's server is full (0006-server.patch).
#pragma once

#include "common.h"
#include "server-task.h"

#include <string>
#include <utility>
#include <vector>

namespace spac {

// Ends the youngest of several requests, if possible one without an answer, and takes its tokens from `off` on out of
// the batch. An answer ends as at its limit. `refuse` gets the error for a request without one. Returns false if a
// single request runs. It is a template, because the server declares Slot and Batch in its source file.
template <typename Slot, typename Batch, typename Finish, typename Refuse>
bool end_youngest(std::vector<Slot> & slots, Batch & batch, int32_t off, Finish && finish, Refuse && refuse) {
    const auto rank   = [](const Slot & slot) { return std::make_pair(slot.stats.n_gen == 0, slot.task->id); };
    Slot *     last   = nullptr;
    int        n_runs = 0;
    for (auto & slot : slots) {
        if (slot.is_processing()) {
            ++n_runs;
            last = last == nullptr || rank(slot) > rank(*last) ? &slot : last;
        }
    }
    if (n_runs < 2 || batch.has_embd) {
        return false;
    }
    for (int32_t i = batch.size() - 1; i >= off; --i) {
        if (batch.tokens[i].id_slot != last->id) {
            continue;
        }
        batch.tokens.erase(batch.tokens.begin() + i);
        for (auto & slot : slots) {
            slot.i_batch -= slot.i_batch > i ? 1 : 0;
            for (auto & row : slot.spec_i_batch) {
                row -= row > i ? 1 : 0;
            }
        }
    }
    if (last->stats.n_gen > 0) {
        last->truncated = true;
        last->stop      = STOP_TYPE_LIMIT;
        finish(*last);
    } else {
        refuse(*last, string_format("%d requests share the context, and it is full: raise --ctx, or lower --parallel",
                                    n_runs));
    }
    last->release();
    last->prompt_clear();
    return true;
}

} // namespace spac
