// Properties and behaviour of the pretend card: environment variables PRETEND_CUDA_…, read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pretend {

constexpr int max_cards = 8;

struct Settings {
    int         cc;            // CC: compute capability times ten; the objects are compiled for it
    int         n_sm;          // SM: multiprocessors
    int         cards;         // CARDS: number of cards, at most max_cards; all are alike
    size_t      memory;        // MEMORY_MB: device memory of each card, in bytes
    size_t      pinned;        // PINNED_MB: host memory that may be pinned, in bytes
    bool        registers;     // REGISTER=0: host memory cannot be registered
    bool        read_only;     // READ_ONLY=0: host memory cannot be registered as read-only
    bool        mem_ops;       // MEM_OPS=0: streams cannot write or wait for values
    bool        vmm;           // VMM=0: the driver has no virtual memory
    size_t      graph_bytes;   // GRAPH_KB: device memory of each executable graph, in bytes
    size_t      handle_bytes;  // HANDLE_MB: device memory of each handle of cuBLAS, in bytes
    bool        event_query;   // EVENT_QUERY=0: the driver answers questions about events with an error
    bool        full_query;    // FULL_QUERY=1: the driver has no memory to ask a stream how far it has come
    int         implicit;      // IMPLICIT=n: a kernel's first launch and every n-th call wait for the whole card
    bool        check;         // CHECK=0: kernels' pointers are not looked up
    bool        abort;         // ABORT=1: a misuse ends the process, for a debugger
    double      gb_s;          // GB_S: speed of copies between host and device; 0 = as fast as memory
    double      copy_us;       // COPY_US: additional time of every copy
    double      kernel_us;     // KERNEL_US: time of every kernel
    uint64_t    seed;          // SEED: seed of the router's choices and of logits
    size_t      vocabulary;    // VOCABULARY: copies to the host of so many floats a row are logits, and get a peak
    double      agreement;     // AGREEMENT: share of rows whose peak is at TOKEN
    int         token;         // TOKEN: the token of these peaks
    bool        poison;        // POISON=1: new device memory is full of NaNs instead of zeros
    std::string execute;       // EXECUTE: a folder: kernels compute, and their translations are kept there
    std::string report, trace; // REPORT, TRACE: files for the counts at the end, and for a line per call
};

const Settings & settings();

// Returns a number that differs for every argument, and is the same in every run with one seed.
uint64_t mix(uint64_t x);

} // namespace pretend
