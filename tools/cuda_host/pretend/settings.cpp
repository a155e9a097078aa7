#include "settings.h"

#include <algorithm>
#include <cstdlib>

namespace pretend {
namespace {

const char * text(const char * name, const char * otherwise) {
    const std::string full  = std::string("PRETEND_CUDA_") + name;
    const char *      value = std::getenv(full.c_str());
    return value != nullptr ? value : otherwise;
}

double number(const char * name, double otherwise) {
    const char * value = text(name, nullptr);
    return value != nullptr ? std::atof(value) : otherwise;
}

size_t mebibytes(const char * name, double otherwise) { return static_cast<size_t>(number(name, otherwise)) << 20; }

} // namespace

const Settings & settings() {
    static const auto * all = new Settings{
        /* .cc         = */ static_cast<int>(number("CC", 90)),
        /* .n_sm       = */ static_cast<int>(number("SM", 132)),
        /* .cards      = */ std::clamp(static_cast<int>(number("CARDS", 1)), 1, max_cards),
        /* .memory     = */ mebibytes("MEMORY_MB", 8192),
        /* .pinned     = */ mebibytes("PINNED_MB", 1 << 20),
        /* .registers  = */ number("REGISTER", 1) != 0,
        /* .read_only  = */ number("READ_ONLY", 1) != 0,
        /* .mem_ops    = */ number("MEM_OPS", 1) != 0,
        /* .vmm        = */ number("VMM", 1) != 0,
        /* .graph_bytes = */ static_cast<size_t>(number("GRAPH_KB", 0)) << 10,
        /* .handle_bytes = */ mebibytes("HANDLE_MB", 0),
        /* .event_query = */ number("EVENT_QUERY", 1) != 0,
        /* .full_query = */ number("FULL_QUERY", 0) != 0,
        /* .implicit   = */ static_cast<int>(number("IMPLICIT", 0)),
        /* .check      = */ number("CHECK", 1) != 0,
        /* .abort      = */ number("ABORT", 0) != 0,
        /* .gb_s       = */ number("GB_S", 0),
        /* .copy_us    = */ number("COPY_US", 0),
        /* .kernel_us  = */ number("KERNEL_US", 0),
        /* .seed       = */ static_cast<uint64_t>(number("SEED", 0)),
        /* .vocabulary = */ static_cast<size_t>(number("VOCABULARY", 0)),
        /* .agreement  = */ number("AGREEMENT", 0.9),
        /* .token      = */ static_cast<int>(number("TOKEN", 65)),
        /* .poison     = */ number("POISON", 0) != 0,
        /* .execute    = */ text("EXECUTE", ""),
        /* .report     = */ text("REPORT", ""),
        /* .trace      = */ text("TRACE", ""),
    };
    return *all;
}

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15 + settings().seed * 0xd1342543de82ef95;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

} // namespace pretend
