#include "session/template_work.h"

#include "chat.h"
#include "core/error.h"
#include "llama.h"
#include "session/big_stack.h"
#include <jinja/runtime.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>
#include <vector>

namespace jinja { // patches/0006-server.patch calls these
value counted(const statement & what, context & where);
void  count_stored(const value & in, const value & what);
void  count_call(const std::string & name, const func_args & args);
} // namespace jinja

namespace spac {
namespace {

constexpr double most_seconds = 4; // of this thread's processor time
constexpr size_t most_source  = 100'000;
constexpr size_t most_bytes   = 64'000'000;      // of one text or list
constexpr size_t most_copied  = 1'000'000'000;   // of all texts together
constexpr size_t most_moved   = 100'000'000'000; // by one call that takes a text apart
constexpr size_t value_bytes = 300, part_bytes = sizeof(jinja::string_part);
constexpr size_t most_stack = 32 << 20; // of schema_stack; the rest is for reading, and for values in values
constexpr int    look_every = 64;       // steps between two looks at the clock

struct Work {
    double      until    = 0; // 0: no limits
    size_t      stack    = 0; // bytes that have to be left
    size_t      n_copied = 0;
    int         n_steps  = 0;
    std::string fault;
};
thread_local Work work;

double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A template's checks are tried with their faults ignored, so the first fault stays.
void refuse(const std::string & fault) {
    if (work.fault.empty()) {
        work.fault = fault;
    }
    throw InputError(work.fault);
}

void refuse_size() {
    refuse("it makes a text or a list of more than " + std::to_string(most_bytes / 1'000'000) + " MB");
}

// A product that stays below the range.
size_t times(size_t a, size_t b) { return a == 0 || b <= (size_t(1) << 62) / a ? a * b : size_t(1) << 62; }

void count_step() {
    if (!work.fault.empty()) {
        refuse(work.fault);
    }
    if (work.until == 0) {
        return;
    }
    if (stack_bytes_left() < work.stack) {
        refuse("it calls itself too often");
    }
    if (++work.n_steps % look_every == 0 && now() > work.until) {
        refuse("it does not end in " + std::to_string(static_cast<int>(most_seconds)) + " s");
    }
}

void count_made(const jinja::value & made) {
    if (work.until != 0 && times(made->val_arr.size(), value_bytes) > most_bytes) {
        refuse_size();
    }
}

void count_copied(size_t n_bytes) {
    work.n_copied += n_bytes;
    if (n_bytes > most_bytes) {
        refuse_size();
    }
    if (work.n_copied > most_copied) {
        refuse("its texts are more than " + std::to_string(most_copied / 1'000'000'000) + " GB together");
    }
}

void count_copied(const jinja::string & text, size_t n_parts_before) {
    if (times(n_parts_before, part_bytes) > most_bytes) {
        refuse_size();
    }
    count_copied(text.length() + text.parts.size() * part_bytes);
}

// Refuses to put a container into itself, which whatever walks it would never leave.
void check_stored(const jinja::value & in, const jinja::value & what) {
    std::vector<const jinja::value_t *> left{what.get()};
    std::set<const jinja::value_t *>    seen;
    while (!left.empty()) {
        const auto * const each = left.back();
        left.pop_back();
        if (each == in.get()) {
            refuse("it puts a value into itself");
        }
        if ((each->val_arr.empty() && each->val_obj.empty()) || !seen.insert(each).second) {
            continue;
        }
        count_step();
        for (const auto & inner : each->val_arr) {
            left.push_back(inner.get());
        }
        for (const auto & [key, inner] : each->val_obj) {
            left.push_back(inner.get());
        }
    }
}

size_t n_found(const std::string & text, const std::string & what) {
    if (what.empty()) {
        return text.size() + 1;
    }
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) {
        ++n;
    }
    return n;
}

// Estimates what a function makes of its arguments, before it does.
void check_call(const std::string & name, const jinja::func_args & args) {
    count_step();
    if (work.until == 0) {
        return;
    }
    const auto given = [&](size_t i) { return i < args.count() ? args.get_pos(i) : nullptr; };
    const auto text  = [&](size_t i, const char * missing = "") {
        const auto value = given(i);
        return jinja::is_val<jinja::value_string>(value) ? value->as_string().str() : std::string(missing);
    };
    const auto number = [&](size_t i, int64_t missing) {
        const auto value = given(i);
        return jinja::is_val<jinja::value_int>(value) ? value->as_int() : missing;
    };
    const auto magnitude = [](int64_t n) { return n < 0 ? 0 - static_cast<size_t>(n) : static_cast<size_t>(n); };
    if (name == "range") {
        const bool    one   = args.count() < 2;
        const int64_t begin = one ? 0 : number(0, 0), end = number(one ? 0 : 1, 0), step = number(2, 1);
        const size_t  span = step > 0 ? (end > begin ? static_cast<size_t>(end) - static_cast<size_t>(begin) : 0)
                                      : (begin > end ? static_cast<size_t>(begin) - static_cast<size_t>(end) : 0);
        count_copied(times(span / std::max<size_t>(1, magnitude(step)), value_bytes));
    } else if (name == "append") {
        if (given(0) != nullptr && given(1) != nullptr) {
            check_stored(given(0), given(1));
        }
    } else if (name == "replace" || name == "split" || name == "rsplit") {
        const auto   from  = text(0);
        const bool   makes = name == "replace"; // else it makes a list, of so many parts at most
        const auto   limit = number(2, -1);
        const size_t most  = makes || limit < 0 ? from.size() + 1 : static_cast<size_t>(limit);
        const size_t n     = std::min(n_found(from, text(1, " ")), most);
        if (times(n, makes && text(1).size() == text(2).size() ? 0 : from.size()) > most_moved) {
            refuse("it takes texts apart for too long");
        }
        count_copied(from.size() + times(n, makes ? text(2).size() : value_bytes));
    } else if (name == "join" && given(0) != nullptr) {
        const size_t n       = given(0)->val_arr.size();
        size_t       n_bytes = times(n, given(1) != nullptr ? given(1)->val_str.length() : 0);
        for (const auto & each : given(0)->val_arr) {
            n_bytes += each->val_str.length();
        }
        count_copied(n_bytes);
    } else if (name == "indent" || name == "tojson") {
        for (size_t i = 1; i < args.count(); ++i) { // by position or by name
            auto value = args.get_args()[i];
            if (const auto * const named = jinja::cast_val<jinja::value_kwarg>(value)) {
                value = named->val;
            }
            if (jinja::is_val<jinja::value_int>(value)) {
                const auto lines = 1 + (name == "indent" ? n_found(text(0), "\n") : size_t(10'000));
                count_copied(times(magnitude(value->as_int()), lines));
            }
        }
    }
}

} // namespace

void within_template_limits(const std::function<void()> & call) {
    const auto limited = [&] {
        if (work.until != 0) { // inside another call
            call();
            return;
        }
        struct End {
            ~End() { work = {}; }
        } const end;
        work       = {};
        work.until = now() + most_seconds;
        work.stack = stack_bytes_left() - std::min(stack_bytes_left() / 2, most_stack);
        try {
            call();
        } catch (const std::exception &) {
            if (work.fault.empty()) {
                throw;
            }
        }
        if (!work.fault.empty()) {
            throw InputError(work.fault);
        }
    };
    if (!on_stack(schema_stack, limited)) { // the host gives no address space for it
        limited();
    }
}

void check_template_length(const std::string & source) {
    if (source.size() > most_source) {
        throw InputError("it has " + std::to_string(source.size()) + " bytes, and " + std::to_string(most_source) +
                         " are the most");
    }
}

} // namespace spac

jinja::value jinja::counted(const statement & what, context & where) {
    spac::count_step();
    value made = what.execute_impl(where);
    spac::count_made(made);
    return made;
}

void jinja::count_stored(const value & in, const value & what) { spac::check_stored(in, what); }

void jinja::count_call(const std::string & name, const func_args & args) { spac::check_call(name, args); }

// The linker sends calls from other source files here (--wrap), and calls of the __real_ names to llama.cpp's
// functions.
#define SPAC_INIT(prefix)                                                                                              \
    prefix##_Z26common_chat_templates_initPK11llama_modelRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES9_S9_
#define SPAC_APPEND(prefix) prefix##_ZN5jinja6string6appendERKS0_

extern "C" {
common_chat_templates_ptr SPAC_INIT(__real_)(const llama_model * model, const std::string & source,
                                             const std::string & begin, const std::string & end);
common_chat_templates_ptr SPAC_INIT(__wrap_)(const llama_model * model, const std::string & source,
                                             const std::string & begin, const std::string & end);
jinja::string &           SPAC_APPEND(__real_)(jinja::string * to, const jinja::string & other);
jinja::string &           SPAC_APPEND(__wrap_)(jinja::string * to, const jinja::string & other);
}

common_chat_templates_ptr SPAC_INIT(__wrap_)(const llama_model * model, const std::string & source,
                                             const std::string & begin, const std::string & end) {
    spac::check_template_length(source);
    for (const char * variant : {static_cast<const char *>(nullptr), "tool_use"}) {
        const char * own = model != nullptr ? llama_model_chat_template(model, variant) : nullptr;
        spac::check_template_length(own != nullptr && source.empty() ? own : "");
    }
    common_chat_templates_ptr made;
    spac::within_template_limits([&] { made = SPAC_INIT(__real_)(model, source, begin, end); });
    return made;
}

jinja::string & SPAC_APPEND(__wrap_)(jinja::string * to, const jinja::string & other) {
    if (spac::work.until != 0) {
        spac::count_copied(other, to->parts.size());
    }
    return SPAC_APPEND(__real_)(to, other);
}
