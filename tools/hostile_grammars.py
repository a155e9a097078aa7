"""Grammars and schemas that recurse, multiply or contradict themselves, each with a part of its refusal."""

from __future__ import annotations

from typing import Any


def _rules(n: int, form: str, last: str) -> str:
    """Return `n` rules of this form, where I is the rule's number and J the next one's, and a last rule."""
    rules = [form.replace("I", str(i)).replace("J", str(i + 1)) for i in range(n)]
    return "\n".join(["root ::= r0", *rules, f"r{n} ::= {last}"])


def _words(n: int) -> list[str]:
    return [f"word-{i}" for i in range(n)]


GRAMMARS: dict[str, tuple[str, str]] = {
    "parentheses": ("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "500 nested groups"),
    "many rules": (_rules(200_000, "rI ::= rJ", '"a"'), "1048576 bytes"),
    "a chain": (_rules(40_000, "rI ::= rJ", '"a"'), "5000 rules that begin with each other"),
    "5 to 2 times": ('root ::= "a"{5,2}', "least number, 5, exceeds its largest, 2"),
    "doubled": (_rules(60, "rI ::= rJ rJ", '"a"?'), "too many alternatives"),
    "forked": (_rules(40, "rI ::= rJ | rJ", '"a"'), "50000000 ways from rule to rule"),
    "optional": ("root ::= " + '("a"?)' * 3_000 + '"b"', "too many alternatives"),
    "alternatives": ("root ::= " + " | ".join(f'"{word}"' for word in _words(60_000)), "500000 characters"),
    "a hidden loop": ('root ::= e root "a" | "b"\ne ::= f\nf ::= "x"?', "too many alternatives"),
    "multiplied": (f'root ::= "{"a" * 5000}"{{2000}}', "500000 characters"),
    "many repetitions": ('root ::= "a"{3000}', "2000 repetitions (line 1, column 13)"),
    "a reversed range": ('root ::= "x"\n  [z-a]', "the range z-a ends before it begins (line 2, column 4)"),
    "beyond Unicode": ('root ::= "a\\U00110000"', "\\U00110000 is beyond Unicode (line 1, column 12)"),
    "no token": ("root ::= <no-such-token>", "invalid token '<no-such-token>'"),
    "no token's number": ("root ::= <[99999999]>", "<[99999999]> is not a token"),
    "too large a number": ("root ::= <[99999999999999999999999]>", "number is too large"),
    "not closed": ("root ::= (", "expecting ')' (line 1, column 11)"),
    "no root": ('other ::= "a"', "no rule root"),
    "a root without a rule": ('x ::= root\nx ::= "a"', "the rule 'root' is not defined"),
    "begins with itself": ('root ::= root "a" | "b"', "'root' begins with itself"),
    "doubled by each letter": ('root ::= "a" root "b" | "a" root "c"', "too many alternatives"),
    "no character": ('root ::= "ab\\x00"', "no way on"),
}


def _references(n: int, form: str) -> dict[str, Any]:
    """Return a schema of `n` definitions that refer to the next one, once or as two alternatives."""
    definitions: dict[str, Any] = {f"d{n}": {"type": "string"}}
    for i in range(n):
        next_one = {"$ref": f"#/$defs/d{i + 1}"}
        definitions[f"d{i}"] = next_one if form == "one" else {form: [next_one, next_one]}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _nested(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


def _object(names: list[str], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, **more}


SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "enum": ({"enum": _words(100_000)}, "30,000 values"),
    "properties": (_object(_words(20_000), required=_words(20_000)), "2,000 properties"),
    "optional properties": (_object(_words(2_000)), "250 optional properties"),
    "anyOf": ({"anyOf": [{"const": word} for word in _words(100_000)]}, "30,000 values"),
    "items": ({"type": "array", "minItems": 5, "maxItems": 2}, "minItems, 5, exceeds maxItems, 2"),
    "characters": ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength, 5, exceeds maxLength, 2"),
    "numbers": ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum, 5, exceeds maximum, 2"),
    "pattern": ({"type": "string", "pattern": "^a{5,2}$"}, "at least 5 times and at most 2"),
    "repetitions": ({"type": "string", "minLength": 1_000_000}, "2000 repetitions"),
    "levels": (_nested(150), "100 levels"),
    "references": (_references(20_000, "one"), "500 different references"),
    "ways": (_references(40, "anyOf"), "20,000 ways"),
    "a loop": ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads to itself"),
    "types": (
        {"type": ["object"] * 200, "properties": {"a": {"type": ["string"] * 200}}}, "30,000 values",
    ),
    "a name": (_object(["n" * 60_000], additionalProperties=True), "300 characters in a property's name"),
}  # fmt: skip

LARGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": _words(500)},
        **{f"field-{i}": {"type": ["string", "null"], "maxLength": 80} for i in range(200)},
        "parts": {"type": "array", "items": {"$ref": "#/properties/more"}, "maxItems": 20},
        "more": _nested(20),
    },
    "required": ["kind"],
}
"""A large schema that is no attack."""

_ARGUMENTS = {
    f"argument_{i}": {"type": "string", "description": f"the argument number {i}"} for i in range(20)
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {
        "name": f"tool_{i}", "description": f"the tool number {i}",
        "parameters": {"type": "object", "properties": _ARGUMENTS, "required": ["argument_0"]},
    }}
    for i in range(50)
]  # fmt: skip
"""Fifty tools with twenty properties each, as agents have them."""
