// Properties and behaviour of the pretend card: environment variables PRETEND_CUDA_…, read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pretend {

constexpr int max_cards = 8;

// Returns what PRETEND_CUDA_`name` says, and `otherwise` if it is not set.
std::string text(const char * name);
double      number(const char * name, double otherwise);
size_t      size(const char * name, double otherwise, int shift);

struct Settings {
    // Compute capability times ten. The objects are compiled for it.
    int cc = static_cast<int>(number("CC", 90));
    // Number of multiprocessors, and number of cards, at most max_cards. All cards are alike.
    int n_sm  = static_cast<int>(number("SM", 132));
    int cards = static_cast<int>(number("CARDS", 1));
    // Device memory of each card, host memory that may be pinned, device memory of each executable graph and of each
    // handle of cuBLAS, all in bytes.
    size_t memory       = size("MEMORY_MB", 8192, 20);
    size_t pinned       = size("PINNED_MB", 1 << 20, 20);
    size_t graph_bytes  = size("GRAPH_KB", 0, 10);
    size_t handle_bytes = size("HANDLE_MB", 0, 20);
    // With 0: host memory cannot be registered, or not as read-only. Streams cannot write or wait for values. The
    // driver has no virtual memory. It answers questions about events with an error.
    bool registers   = number("REGISTER", 1) != 0;
    bool read_only   = number("READ_ONLY", 1) != 0;
    bool mem_ops     = number("MEM_OPS", 1) != 0;
    bool vmm         = number("VMM", 1) != 0;
    bool event_query = number("EVENT_QUERY", 1) != 0;
    // With 1: the driver has no memory to ask a stream how far it has come. New device memory is full of NaNs instead
    // of zeros.
    bool full_query = number("FULL_QUERY", 0) != 0;
    bool poison     = number("POISON", 0) != 0;
    // A kernel's first launch and every n-th call wait for the whole card.
    int implicit = static_cast<int>(number("IMPLICIT", 0));
    // Speed of copies between host and device (0: as fast as memory), additional time of every copy, time of a kernel.
    double gb_s      = number("GB_S", 0);
    double copy_us   = number("COPY_US", 0);
    double kernel_us = number("KERNEL_US", 0);
    // Copies to the host of so many floats a row are logits, and get a peak.
    size_t vocabulary = size("VOCABULARY", 0, 0);
    // A folder: kernels compute, and their translations are kept there.
    std::string execute = text("EXECUTE");
    // A file for the counts at the end.
    std::string report = text("REPORT");
};

const Settings & settings();

// Returns a number that differs for every argument.
uint64_t mix(uint64_t x);

} // namespace pretend
