#include "session/big_stack.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdint>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>

namespace spac {

namespace {

struct Work {
    const std::function<void()> & call;
    std::exception_ptr            error;
};

void * run(void * given) {
    auto & work = *static_cast<Work *>(given);
    try {
        work.call();
    } catch (...) {
        work.error = std::current_exception();
    }
    return nullptr;
}

// Starts the thread without signals, which belong to the threads that wait for them.
bool start(pthread_t & thread, const pthread_attr_t & attributes, Work & work) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, &attributes, run, &work) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

} // namespace

size_t stack_bytes_left() {
    thread_local const char * const end = [] {
        pthread_attr_t attributes;
        void *         address = nullptr;
        size_t         size    = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &address, &size);
            pthread_attr_destroy(&attributes);
        }
        return static_cast<const char *>(address);
    }();
    const auto * const here = static_cast<const char *>(__builtin_frame_address(0));
    return end != nullptr && here > end ? static_cast<size_t>(here - end) : 0;
}

bool on_stack(size_t bytes, const std::function<void()> & call) {
    if (stack_bytes_left() >= bytes) {
        call();
        return true;
    }
    constexpr size_t guard = 64 << 10; // beyond the stack's end
    const size_t     size  = (bytes + guard + 0xFFFF) & ~size_t(0xFFFF);
    void * const     stack =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        return false;
    }
    mprotect(stack, guard, PROT_NONE);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, static_cast<char *>(stack) + guard, size - guard);
    Work       work{call, nullptr};
    pthread_t  thread;
    const bool started = start(thread, attributes, work);
    pthread_attr_destroy(&attributes);
    if (started) {
        pthread_join(thread, nullptr);
    }
    munmap(stack, size);
    if (work.error != nullptr) {
        std::rethrow_exception(work.error);
    }
    return started;
}

// Splits texts for a tokenizer on a stack that holds them. The regular expressions of many models (gpt-oss,
// DeepSeek-V3) are std::regex, which recurses once for each character of a match. 25,000 times the same letter end a
// thread of 8 MB.
namespace {

using Strings = std::vector<std::string>;

constexpr size_t plain_bytes = 2'000;   // A text up to this fits any thread's stack.
constexpr size_t most_bytes  = 500'000; // Longer texts are cut.
constexpr size_t per_byte    = 4096;    // A character takes 320 to 470 bytes of a stack, and more with a sanitizer.

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_mark(char c) { return std::ispunct(static_cast<unsigned char>(c)) != 0; }

// Returns how good a place is for a cut. No tokenizer joins what is before a place of 3 with what is behind it, and
// hardly one at 2 or 1. A character is whole on both sides of a place of 0.
int rank(const std::string & text, size_t at) {
    const char before = text[at - 1], here = text[at], behind = at + 1 < text.size() ? text[at + 1] : '\0';
    if (before == '\n' && is_letter(here) && (is_letter(text[at - 2]) || is_mark(text[at - 2]))) {
        return 3;
    }
    if (here == ' ' && is_letter(behind)) {
        return is_mark(before) ? 2 : is_letter(before) ? 1 : 0;
    }
    return (here & 0xC0) == 0x80 ? -1 : 0;
}

// Returns the end of the piece that begins at `begin`: the last place of the best rank in its second half.
size_t end_of_piece(const std::string & text, size_t begin, size_t most) {
    if (text.size() - begin <= most) {
        return text.size();
    }
    size_t best = begin + most;
    int    high = -1;
    for (size_t at = begin + most; at > begin + most / 2 && high < 3; --at) {
        if (const int found = rank(text, at); found > high) {
            high = found;
            best = at;
        }
    }
    return best;
}

} // namespace

} // namespace spac

// The linker sends calls of llama.cpp's unicode_regex_split here (--wrap), and calls of the __real_ name to it. Every
// tokenizer that has regular expressions calls it, whoever asks for the tokens.
#define SPAC_SPLIT(prefix)                                                                                             \
    prefix##_Z19unicode_regex_splitRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt6vectorIS4_SaIS4_EEb

extern "C" {
spac::Strings SPAC_SPLIT(__real_)(const std::string & text, const spac::Strings & expressions, bool encodes);
spac::Strings SPAC_SPLIT(__wrap_)(const std::string & text, const spac::Strings & expressions, bool encodes);
}

spac::Strings SPAC_SPLIT(__wrap_)(const std::string & text, const spac::Strings & expressions, bool encodes) {
    if (text.size() <= spac::plain_bytes) {
        return SPAC_SPLIT(__real_)(text, expressions, encodes);
    }
    spac::Strings words;
    size_t        most = spac::most_bytes; // less where the host gives no address space for such a stack
    for (size_t begin = 0; begin < text.size();) {
        const size_t      end   = spac::end_of_piece(text, begin, most);
        const bool        whole = end - begin == text.size();
        const std::string piece = whole ? std::string() : text.substr(begin, end - begin);
        spac::Strings     next;
        const auto        split = [&] { next = SPAC_SPLIT(__real_)(whole ? text : piece, expressions, encodes); };
        if (!spac::on_stack((end - begin) * spac::per_byte + (1 << 20), split)) {
            if (end - begin > spac::plain_bytes) {
                most = std::max(spac::plain_bytes, (end - begin) / 2);
                continue;
            }
            split();
        }
        words.insert(words.end(), std::make_move_iterator(next.begin()), std::make_move_iterator(next.end()));
        begin = end;
    }
    return words;
}
