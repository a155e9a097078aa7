#include "session/grammar_text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace spac {

namespace {

// The limits of every grammar. llama.cpp recurses once for each nested group.
constexpr size_t   max_bytes    = 1 << 20;
constexpr size_t   max_groups   = 500;     // nested
constexpr size_t   max_elements = 500'000; // characters and references, after repetitions are written out
constexpr uint64_t max_repeats  = 2'000;   // llama.cpp's

// Reads a grammar's text as llama.cpp's parser does, without recursion, and counts the elements that the parser would
// make. It throws a GrammarFault for what the parser would accept or not survive. It leaves other faults to the parser.
class Reader {
  public:
    explicit Reader(const std::string & text) : text_(text.c_str()) {}

    void read() {
        while (*at() != '\0') {
            const char c = *at();
            if (c == '#') {
                pos_ += std::strcspn(at(), "\r\n");
            } else if (c == '"') {
                read_literal();
            } else if (c == '[') {
                read_class();
            } else if (c == '<') {
                begin_symbol();
                pos_ += std::strcspn(at(), ">");
                add(1);
            } else if (is_word(c)) {
                begin_symbol();
                while (is_word(*at())) {
                    ++pos_;
                }
                add(1);
            } else if (c == '*' || c == '+' || c == '?' || c == '{') {
                repeat();
            } else {
                mark(c);
                ++pos_;
            }
        }
    }

  private:
    struct Group {
        size_t n_elements   = 0;
        size_t begin_symbol = 0; // the number of elements before the last symbol
    };

    const char * at() const { return text_ + pos_; }

    static bool is_word(char c) {
        return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-';
    }

    [[noreturn]] void refuse(const std::string & what) const { throw GrammarFault{what, pos_}; }

    void begin_symbol() { groups_.back().begin_symbol = groups_.back().n_elements; }

    void add(size_t n) {
        groups_.back().n_elements += n;
        n_elements_ += n;
        if (n_elements_ > max_elements) {
            refuse(over_limit(max_elements, "characters and references"));
        }
    }

    void mark(char c) {
        if (c == '(') {
            groups_.emplace_back();
            if (groups_.size() > max_groups) {
                refuse(over_limit(max_groups, "nested groups"));
            }
        } else if (c == ')' && groups_.size() > 1) {
            groups_.pop_back();
            begin_symbol();
            add(1);
        } else if (c == '.') {
            begin_symbol();
            add(1);
        } else if (c == '|' || c == '=') { // an alternative, or a rule's beginning
            add(1);
            begin_symbol();
        }
    }

    // Reads a character of a literal or a class, and returns its code point.
    uint32_t read_char() {
        const auto first = static_cast<unsigned char>(*at());
        if (first == '\\') {
            const char * const kinds = "xuU";
            const char * const kind  = at()[1] != '\0' ? std::strchr(kinds, at()[1]) : nullptr;
            if (kind == nullptr) {
                const auto code = static_cast<unsigned char>(at()[1]);
                pos_ += code != '\0' ? 2 : 1;
                return code == 't' ? '\t' : code == 'r' ? '\r' : code == 'n' ? '\n' : code;
            }
            const size_t   begin = pos_;
            const int      n     = 2 << (kind - kinds);
            const char *   digit = at() + 2;
            uint32_t       value = 0;
            constexpr char hex[] = "0123456789abcdef";
            for (int i = 0; i < n; ++i, ++digit) {
                const char * const found =
                    *digit != '\0' ? std::strchr(hex, *digit | (*digit > '9' ? 32 : 0)) : nullptr;
                if (found == nullptr) {
                    refuse("an escape of " + std::to_string(n) + " hexadecimal digits is incomplete");
                }
                value = (value << 4) + static_cast<uint32_t>(found - hex);
            }
            if (value > 0x10FFFF) {
                refuse("the character " + std::string(text_ + begin, digit) + " is beyond Unicode");
            }
            pos_ += 2 + n;
            return value;
        }
        const int n     = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
        uint32_t  value = n == 1 ? first : first & ((1 << (7 - n)) - 1);
        ++pos_;
        for (int i = 1; i < n && *at() != '\0'; ++i, ++pos_) {
            value = (value << 6) + (static_cast<unsigned char>(*at()) & 0x3F);
        }
        return value;
    }

    void read_literal() {
        begin_symbol();
        ++pos_;
        while (*at() != '"') {
            if (*at() == '\0') {
                return;
            }
            read_char();
            add(1);
        }
        ++pos_;
    }

    void read_class() {
        begin_symbol();
        pos_ += at()[1] == '^' ? 2 : 1;
        while (*at() != ']') {
            if (*at() == '\0') {
                return;
            }
            const size_t   begin = pos_;
            const uint32_t first = read_char();
            add(1);
            if (*at() == '-' && at()[1] != ']' && at()[1] != '\0') {
                ++pos_;
                if (read_char() < first) {
                    const size_t end = pos_;
                    pos_             = begin;
                    refuse("the range " + std::string(text_ + begin, text_ + end) + " ends before it begins");
                }
                add(1);
            }
        }
        ++pos_;
    }

    void skip_space() {
        while (*at() != '\0' && std::strchr(" \t\r\n", *at()) != nullptr) {
            ++pos_;
        }
    }

    uint64_t read_number() {
        uint64_t value = 0;
        for (; '0' <= *at() && *at() <= '9'; ++pos_) {
            value = std::min<uint64_t>(10 * value + static_cast<uint64_t>(*at() - '0'), max_repeats + 1);
        }
        return value;
    }

    // Reads the mark of a repetition. It writes the last symbol out as often as llama.cpp does.
    void repeat() {
        const char   c       = *at();
        const size_t begin   = pos_++;
        uint64_t     least   = c == '+' ? 1 : 0;
        uint64_t     n_rules = 1; // that end the repetition early, or repeat it without end
        if (c == '{') {
            skip_space();
            const char * const low = at();
            least                  = read_number();
            const std::string written(low, at());
            skip_space();
            n_rules = 0;
            if (*at() == ',') {
                ++pos_;
                skip_space();
                const char * const high = at();
                const uint64_t     most = read_number();
                n_rules                 = 1;
                if (high != at() && most <= max_repeats) {
                    if (most < least) {
                        const std::string other(high, at());
                        pos_ = begin;
                        refuse("a repetition's least number, " + written + ", exceeds its largest, " + other);
                    }
                    n_rules = most - least;
                }
            }
            if (least > max_repeats) {
                pos_ = begin;
                refuse(over_limit(max_repeats, "repetitions"));
            }
        }
        auto &       group = groups_.back();
        const size_t size  = group.n_elements - group.begin_symbol;
        const size_t total = size * (least + n_rules) + 3 * n_rules;
        add(total);
        group.n_elements = group.begin_symbol + size * least + (n_rules > 0 ? 1 : 0);
    }

    const char *       text_;
    size_t             pos_ = 0;
    std::vector<Group> groups_{1};
    size_t             n_elements_ = 0;
};

} // namespace

std::string over_limit(size_t n, const char * what) {
    return "it exceeds the limit of " + std::to_string(n) + " " + what;
}

void read_grammar_text(const std::string & text) {
    if (text.size() > max_bytes) {
        throw GrammarFault{over_limit(max_bytes, "bytes"), 0};
    }
    Reader(text).read();
}

} // namespace spac
