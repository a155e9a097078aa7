#include "session/grammar.h"

#include "core/error.h"
#include "json-schema-to-grammar.h"
#include "json.h"

#include <exception>

namespace spac {

std::string grammar_of_schema(const std::string & schema) {
    try {
        return json_schema_to_grammar(common_json::parse(schema), true);
    } catch (const std::exception & error) { // It has several types for invalid schemas.
        throw InputError(error.what());
    }
}

} // namespace spac
