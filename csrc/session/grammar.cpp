#include "session/grammar.h"

#include "../src/llama-grammar.h"
#include "core/error.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "session/big_stack.h"
#include "session/grammar_text.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

namespace spac {

namespace {

constexpr uint64_t max_chain  = 5'000; // llama.cpp recurses once for a rule that begins another one
constexpr uint64_t max_visits = 50'000'000;

// Returns the fault that llama.cpp's parser tells of. Its message ends with the rest of the text.
GrammarFault parser_fault(const std::string & message, const std::string & text, size_t rule) {
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
                    throw GrammarFault{"the rule " + name_of(parser, next) + " begins with itself", 0};
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
                    throw GrammarFault{over_limit(max_chain, "rules that begin with each other"), 0};
                }
                if (n_visits > max_visits) {
                    throw GrammarFault{over_limit(max_visits, "ways from rule to rule"), 0};
                }
                path.pop_back();
            }
        }
    }
}

void check_rules(const llama_grammar_parser & parser, int n_tokens) {
    if (parser.symbol_ids.count("root") == 0) {
        throw GrammarFault{"it has no rule root", 0};
    }
    const auto & rules         = parser.rules;
    const auto   check_defined = [&](size_t rule) {
        if (rule >= rules.size() || rules[rule].empty()) {
            throw GrammarFault{"the rule " + name_of(parser, rule) + " is not defined", 0};
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
                throw GrammarFault{"<[" + std::to_string(element.value) +
                                       "]> is not a token: the vocabulary has tokens 0 to " +
                                       std::to_string(n_tokens - 1),
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
        read_grammar_text(grammar);
        return grammar;
    } catch (const GrammarFault & fault) {
        throw InputError(fault.what);
    } catch (const std::exception & error) { // It has several types for invalid schemas.
        throw InputError(error.what());
    }
}

void check_grammar(const llama_vocab * vocab, const std::string & given, bool shows) {
    const std::string    text = given.c_str(); // llama.cpp reads up to a null character
    llama_grammar_parser parser(vocab);
    try {
        read_grammar_text(text);
        parse(parser, text);
        check_rules(parser, llama_vocab_n_tokens(vocab));
    } catch (const GrammarFault & fault) {
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
