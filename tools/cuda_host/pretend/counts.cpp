#include "counts.h"

#include "settings.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

namespace pretend {
namespace {

constexpr auto n_kinds = static_cast<size_t>(Kind::count);

#define PRETEND_QUOTED(...) #__VA_ARGS__
#define PRETEND_TEXT(...)   PRETEND_QUOTED(__VA_ARGS__)

using Numbers = std::map<std::string, std::atomic<uint64_t>>;

struct All {
    std::array<std::array<std::atomic<uint64_t>, n_kinds>, max_streams> calls = {};

    std::mutex mutex; // of what follows
    Numbers    kernels, misuse;
};

std::string report();

All & all() {
    static auto * one = [] {
        if (!settings().report.empty()) {
            std::atexit([] { std::ofstream(settings().report) << report() << "\n"; });
        }
        return new All;
    }();
    return *one;
}

// Appends an object of numbers by name, without those that are 0.
void append(std::string & json, const char * key, const Numbers & numbers) {
    json += std::string(json.empty() ? "{" : ",\n") + "\"" + key + "\": {";
    const char * separator = "";
    for (const auto & [name, n] : numbers) {
        if (n == 0) {
            continue;
        }
        json += std::string(separator) + "\"";
        for (const char c : name) {
            json += c == '"' || c == '\\' ? std::string{'\\', c}
                                          : std::string{static_cast<unsigned char>(c) < ' ' ? ' ' : c};
        }
        json += "\": " + std::to_string(n);
        separator = ",\n ";
    }
    json += "}";
}

// Returns JSON: {"calls": {"kind stream": calls, …}, "kernels": {name: launches, …}, "misuse": {text: times, …}}
std::string report() {
    Numbers            calls;
    std::istringstream names(PRETEND_TEXT(PRETEND_KINDS));
    for (size_t k = 0; k < n_kinds; ++k) {
        std::string name;
        std::getline(names >> std::ws, name, ',');
        for (size_t s = 0; s < max_streams; ++s) {
            calls[name + " " + std::to_string(s)] = all().calls[s][k].load();
        }
    }
    const std::lock_guard lock(all().mutex);
    std::string           json;
    append(json, "calls", calls);
    append(json, "kernels", all().kernels);
    append(json, "misuse", all().misuse);
    return json + "}";
}

} // namespace

void count(Kind kind, int stream, size_t n) {
    all().calls[stream][static_cast<size_t>(kind)].fetch_add(n, std::memory_order_relaxed);
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
}

std::atomic<uint64_t> & launches(const std::string & name) {
    const std::lock_guard lock(all().mutex);
    return all().kernels[name];
}

} // namespace pretend

extern "C" [[gnu::visibility("default")]] const char * pretend_cuda_report() {
    thread_local std::string text;
    text = pretend::report();
    return text.c_str();
}
