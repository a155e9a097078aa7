#include "counts.h"

#include "settings.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <vector>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pretend {
namespace {

constexpr auto n_kinds = static_cast<size_t>(Kind::count);

constexpr std::array<const char *, n_kinds> names = {
    "kernel",
    "graph_kernel",
    "graph_launch",
    "graph_capture",
    "graph_instantiate",
    "graph_update",
    "copy_to_device",
    "copy_to_host",
    "copy_on_device",
    "pageable_to_device",
    "pageable_to_host",
    "fill",
    "event_record",
    "event_wait",
    "event_synchronize",
    "event_query",
    "stream_synchronize",
    "device_synchronize",
    "write_value",
    "wait_value",
    "cublas",
    "device_alloc",
    "device_free",
    "host_alloc",
    "host_free",
    "host_register",
    "host_unregister",
    "stream_create",
    "event_create",
};

// One thread writes it, and any thread reads it.
struct Cell {
    std::atomic<uint64_t> calls{0}, bytes{0}, wait_ns{0};
};

void add(std::atomic<uint64_t> & to, uint64_t n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

struct Table {
    long                                               thread = 0;
    std::array<std::array<Cell, n_kinds>, max_streams> cells;
};

struct All {
    std::mutex                           mutex;
    std::vector<Table *>                 tables; // never freed
    std::map<std::string, KernelCount *> kernels;
    std::map<std::string, uint64_t>      misuse;
    std::FILE *                          trace = nullptr;
};

All & all() {
    static auto * one = [] {
        auto * made = new All;
        if (!settings().trace.empty()) {
            made->trace = std::fopen(settings().trace.c_str(), "w");
        }
        if (!settings().report.empty()) {
            std::atexit([] { std::ofstream(settings().report) << report() << "\n"; });
        }
        return made;
    }();
    return *one;
}

Table & table() {
    thread_local Table * mine = [] {
        auto * made  = new Table;
        made->thread = syscall(SYS_gettid);
        const std::lock_guard lock(all().mutex);
        all().tables.push_back(made);
        return made;
    }();
    return *mine;
}

int64_t now_ns() {
    timespec t = {};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{1000000000} * t.tv_sec + t.tv_nsec;
}

std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return out + "\"";
}

std::string cells_json() {
    std::string out;
    for (const Table * t : all().tables) {
        for (int s = 0; s < max_streams; ++s) {
            for (size_t k = 0; k < n_kinds; ++k) {
                const Cell &   cell  = t->cells[s][k];
                const uint64_t calls = cell.calls.load(std::memory_order_relaxed);
                if (calls == 0) {
                    continue;
                }
                out += (out.empty() ? "" : ",\n ") + std::string("{\"thread\": ") + std::to_string(t->thread) +
                       ", \"stream\": " + std::to_string(s) + ", \"kind\": \"" + names[k] +
                       "\", \"calls\": " + std::to_string(calls) + ", \"bytes\": " + std::to_string(cell.bytes) +
                       ", \"wait_ns\": " + std::to_string(cell.wait_ns) + "}";
            }
        }
    }
    return out;
}

} // namespace

struct KernelCount {
    std::atomic<uint64_t> launches{0};
};

void count(Kind kind, int stream, size_t bytes, int64_t wait_ns, size_t n, const char * what) {
    Table & mine = table();
    Cell &  cell = mine.cells[stream][static_cast<size_t>(kind)];
    add(cell.calls, n);
    add(cell.bytes, bytes);
    add(cell.wait_ns, static_cast<uint64_t>(wait_ns));
    if (std::FILE * trace = all().trace; trace != nullptr) {
        std::fprintf(trace, "%.3f\t%ld\t%d\t%s\t%zu\t%s\n", static_cast<double>(now_ns()) / 1000, mine.thread, stream,
                     names[static_cast<size_t>(kind)], bytes, what);
    }
}

void misuse(const char * format, ...) {
    char         text[512];
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const std::lock_guard lock(all().mutex);
    if (++all().misuse[text] == 1) {
        std::fprintf(stderr, "pretend CUDA: misuse: %s\n", text);
    }
    if (settings().abort) {
        std::abort();
    }
}

std::string report() {
    const std::lock_guard lock(all().mutex);
    std::string           out = "{\"calls\": [" + cells_json() + "],\n\"kernels\": {";
    bool                  any = false;
    for (const auto & [name, kernel] : all().kernels) {
        if (const uint64_t n = kernel->launches; n > 0) {
            out += (any ? ",\n " : "") + quoted(name) + ": " + std::to_string(n);
            any = true;
        }
    }
    out += "},\n\"misuse\": {";
    any = false;
    for (const auto & [text, n] : all().misuse) {
        out += (any ? ",\n " : "") + quoted(text) + ": " + std::to_string(n);
        any = true;
    }
    return out + "}}";
}

KernelCount * kernel_count(const std::string & name) {
    const std::lock_guard lock(all().mutex);
    KernelCount *&        one = all().kernels[name];
    if (one == nullptr) {
        one = new KernelCount;
    }
    return one;
}

void add_launch(KernelCount * kernel) { kernel->launches.fetch_add(1, std::memory_order_relaxed); }

} // namespace pretend

extern "C" [[gnu::visibility("default")]] const char * pretend_cuda_report() {
    thread_local std::string text;
    text = pretend::report();
    return text.c_str();
}
