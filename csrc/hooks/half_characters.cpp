// A text that can no longer become UTF-8 is sent. llama.cpp's server holds a text back while its last bytes may begin a
// character, and a model that says such bytes again and again would send nothing. The linker's --wrap leads the calls
// here (csrc/CMakeLists.txt).
#include <cstddef>
#include <string>

namespace {

// Returns true if a text ends with a whole character, or is empty.
bool ends_whole(const std::string & text, size_t end) {
    size_t n = 0; // bytes behind the first one of the last character
    while (n < 3 && n < end && (text[end - 1 - n] & 0xC0) == 0x80) {
        ++n;
    }
    if (end <= n) {
        return end == 0;
    }
    const auto first = static_cast<unsigned char>(text[end - 1 - n]);
    return n == (first < 0x80 ? 0U : first >= 0xF0 ? 3U : first >= 0xE0 ? 2U : 1U);
}

} // namespace

#define SPAC_VALIDATE(prefix) prefix##_Z13validate_utf8RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE

extern "C" {
size_t SPAC_VALIDATE(__real_)(const std::string & text);
size_t SPAC_VALIDATE(__wrap_)(const std::string & text);
}

size_t SPAC_VALIDATE(__wrap_)(const std::string & text) {
    const size_t n = SPAC_VALIDATE(__real_)(text);
    return n == text.size() || ends_whole(text, n) ? n : text.size();
}
