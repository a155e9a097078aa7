#include "settings.h"

#include <cstdlib>

namespace pretend {

std::string text(const char * name) {
    const char * value = std::getenv((std::string("PRETEND_CUDA_") + name).c_str());
    return value != nullptr ? value : "";
}

double number(const char * name, double otherwise) {
    const std::string value = text(name);
    return value.empty() ? otherwise : std::atof(value.c_str());
}

size_t size(const char * name, double otherwise, int shift) {
    return static_cast<size_t>(number(name, otherwise)) << shift;
}

const Settings & settings() {
    static const auto * all = new Settings;
    return *all;
}

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

} // namespace pretend
