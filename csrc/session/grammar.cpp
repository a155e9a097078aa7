#include "session/grammar.h"

#include "../src/llama-grammar.h"
#include "core/error.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "session/big_stack.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

namespace spac {

namespace {

// The limits of every door. llama.cpp recurses once a nested group and once a rule that begins another one.
constexpr size_t   max_bytes    = 1 << 20;
constexpr size_t   max_groups   = 500;     // nested
constexpr size_t   max_elements = 500'000; // characters and references, after repetitions are written out
constexpr uint64_t max_chain    = 5'000;
constexpr uint64_t max_visits   = 50'000'000;
constexpr uint64_t max_repeats  = 2'000; // llama.cpp's

// A fault of a grammar, at `offset` of its text.
struct Fault {
    std::string what;
    size_t      offset;
};

std::string limit(size_t n, const char * what) { return "it exceeds the limit of " + std::to_string(n) + " " + what; }

// Reads a grammar's text as llama.cpp's parser does, without recursion, and counts the elements that the parser would
// make. It throws a Fault for what the parser would accept or not survive. It leaves other faults to the parser.
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

    [[noreturn]] void refuse(const std::string & what) const { throw Fault{what, pos_}; }

    void begin_symbol() { groups_.back().begin_symbol = groups_.back().n_elements; }

    void add(size_t n) {
        groups_.back().n_elements += n;
        n_elements_ += n;
        if (n_elements_ > max_elements) {
            refuse(limit(max_elements, "characters and references"));
        }
    }

    void mark(char c) {
        if (c == '(') {
            groups_.emplace_back();
            if (groups_.size() > max_groups) {
                refuse(limit(max_groups, "nested groups"));
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
                refuse(limit(max_repeats, "repetitions"));
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

void read(const std::string & text) {
    if (text.size() > max_bytes) {
        throw Fault{limit(max_bytes, "bytes"), 0};
    }
    Reader(text).read();
}

// Returns the fault that llama.cpp's parser tells of. Its message ends with the rest of the text.
Fault parser_fault(const std::string & message, const std::string & text, size_t rule) {
    for (size_t at = message.find(" at "); at != std::string::npos; at = message.find(" at ", at + 1)) {
        const std::string rest = message.substr(at + 4);
        if (text.size() >= rest.size() && text.compare(text.size() - rest.size(), rest.size(), rest) == 0) {
            return {message.substr(0, at), text.size() - rest.size()};
        }
    }
    return {message == "stoul" ? "a token's number is too large" : message, rule};
}

void parse(llama_grammar_parser & parser, const std::string & text) {
    const char * at   = text.c_str();
    const char * rule = at;
    try {
        // parse_rule() skips the space behind a rule, and nobody that in front of the first one.
        while (*at != '\0' && std::strchr(" \t\r\n#", *at) != nullptr) {
            at += *at == '#' ? std::strcspn(at, "\r\n") : 1;
        }
        while (*at != '\0') {
            rule = at;
            at   = parser.parse_rule(at);
        }
    } catch (const std::exception & error) {
        throw parser_fault(error.what(), text, static_cast<size_t>(rule - text.c_str()));
    }
}

std::string name_of(const llama_grammar_parser & parser, size_t rule) {
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id == rule) {
            return "'" + name + "'";
        }
    }
    return "";
}

bool ends(const llama_grammar_element & element) {
    return element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT;
}

bool may_be_empty(const llama_grammar_rule & rule) {
    bool at_begin = true;
    for (const auto & element : rule) {
        if (ends(element) && at_begin) {
            return true;
        }
        at_begin = ends(element);
    }
    return false;
}

// Returns the rules that llama.cpp's search for left recursion visits from a rule.
std::vector<size_t> begun_by(const llama_grammar_rules & rules, size_t rule) {
    std::vector<size_t> found;
    bool                follows = true;
    for (const auto & element : rules[rule]) {
        if (element.type == LLAMA_GRETYPE_RULE_REF && follows) {
            found.push_back(element.value);
            follows = may_be_empty(rules[element.value]);
        } else {
            follows = ends(element);
        }
    }
    return found;
}

// Checks what llama.cpp's search for left recursion would find, and that it ends: it visits a rule once for every way
// to it.
void check_chains(const llama_grammar_parser & parser) {
    struct Rule {
        std::vector<size_t> next;
        size_t              n_done   = 0;
        uint64_t            depth    = 0; // 0: not seen
        uint64_t            n_visits = 1;
        bool                open     = false;
    };
    std::vector<Rule> rules(parser.rules.size());
    uint64_t          n_visits = 0;
    for (size_t start = 0; start < rules.size(); ++start) {
        std::vector<size_t> path;
        const auto          enter = [&](size_t rule) {
            rules[rule].next  = begun_by(parser.rules, rule);
            rules[rule].open  = true;
            rules[rule].depth = 1;
            path.push_back(rule);
        };
        if (rules[start].depth == 0) {
            enter(start);
        }
        while (!path.empty()) {
            auto & rule = rules[path.back()];
            if (rule.n_done < rule.next.size()) {
                const size_t next = rule.next[rule.n_done];
                if (rules[next].open) {
                    throw Fault{"the rule " + name_of(parser, next) + " begins with itself", 0};
                }
                if (rules[next].depth == 0) {
                    enter(next);
                    continue;
                }
                ++rule.n_done;
                rule.depth    = std::max(rule.depth, rules[next].depth + 1);
                rule.n_visits = std::min(rule.n_visits + rules[next].n_visits, max_visits + 1);
            } else {
                rule.open = false;
                n_visits += rule.n_visits;
                if (rule.depth > max_chain) {
                    throw Fault{limit(max_chain, "rules that begin with each other"), 0};
                }
                if (n_visits > max_visits) {
                    throw Fault{limit(max_visits, "ways from rule to rule"), 0};
                }
                path.pop_back();
            }
        }
    }
}

void check_rules(const llama_grammar_parser & parser, int n_tokens) {
    if (parser.symbol_ids.count("root") == 0) {
        throw Fault{"it has no rule root", 0};
    }
    const auto & rules         = parser.rules;
    const auto   check_defined = [&](size_t rule) {
        if (rule >= rules.size() || rules[rule].empty()) {
            throw Fault{"the rule " + name_of(parser, rule) + " is not defined", 0};
        }
    };
    check_defined(parser.symbol_ids.at("root"));
    for (size_t i = 0; i < rules.size(); ++i) {
        check_defined(i);
        for (const auto & element : rules[i]) {
            if (element.type == LLAMA_GRETYPE_RULE_REF) {
                check_defined(element.value);
            }
            const bool is_token = element.type == LLAMA_GRETYPE_TOKEN || element.type == LLAMA_GRETYPE_TOKEN_NOT;
            if (is_token && element.value >= static_cast<uint32_t>(n_tokens)) {
                throw Fault{"<[" + std::to_string(element.value) +
                                "]> is not a token: the vocabulary has tokens 0 to " + std::to_string(n_tokens - 1),
                            0};
            }
        }
    }
    check_chains(parser);
}

std::string place(const std::string & text, size_t offset) {
    const auto line_begin = offset == 0 ? std::string::npos : text.rfind('\n', offset - 1);
    const auto line       = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
    const auto column     = line_begin == std::string::npos ? offset + 1 : offset - line_begin;
    return " (line " + std::to_string(line) + ", column " + std::to_string(column) + ")";
}

} // namespace

std::string grammar_of_schema(const std::string & schema) {
    try {
        std::string grammar;
        // llama.cpp recurses once for each level of a schema, and once for each reference on its way.
        if (!on_stack(schema_stack, [&] { grammar = json_schema_to_grammar(common_json::parse(schema), true); })) {
            throw InputError("there is no memory for a stack");
        }
        read(grammar);
        return grammar;
    } catch (const Fault & fault) {
        throw InputError(fault.what);
    } catch (const std::exception & error) { // It has several types for invalid schemas.
        throw InputError(error.what());
    }
}

void check_grammar(const llama_vocab * vocab, const std::string & given, bool shows) {
    const std::string    text = given.c_str(); // llama.cpp reads up to a null character
    llama_grammar_parser parser(vocab);
    try {
        read(text);
        parse(parser, text);
        check_rules(parser, llama_vocab_n_tokens(vocab));
    } catch (const Fault & fault) {
        throw InputError("the grammar cannot be used: " + fault.what +
                         (shows && fault.offset > 0 ? place(text, fault.offset) : ""));
    }
    const GrammarScope scope; // The stacks of the beginning may exceed their limit.
    const auto         free = [](llama_grammar * grammar) { llama_grammar_free_impl(grammar); };
    const std::unique_ptr<llama_grammar, decltype(free)> grammar(
        llama_grammar_init_impl(vocab, text.c_str(), "root", false, nullptr, 0, nullptr, 0), free);
    if (grammar == nullptr) {
        throw InputError("the grammar cannot be used");
    }
}

void check_grammar(std::uintptr_t model, const std::string & text) {
    check_grammar(llama_model_get_vocab(reinterpret_cast<const llama_model *>(model)), text);
}

} // namespace spac
