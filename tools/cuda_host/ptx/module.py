"""Read PTX modules as text: their functions, variables and statements."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class PtxError(Exception):
    """PTX text that cannot be read or translated. The message names it."""


@dataclass
class Variable:
    """A variable or parameter: `.align 8 .b8 name[24]`."""

    name: str
    type: str  # without its dot
    count: int = 1  # elements; 0: the launch gives the number
    align: int = 0
    initial: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.count * width(self.type)

    @property
    def alignment(self) -> int:
        return max(self.align, width(self.type))


@dataclass
class Function:
    name: str
    is_entry: bool
    parameters: list[Variable]
    results: list[Variable]
    body: str  # without the outer braces; empty if only declared


def width(kind: str) -> int:
    """Return the bytes of a type: `b32`, `f16x2`, `pred`."""
    if kind == "pred":
        return 1
    found = re.fullmatch(r"[a-z]+(\d+)(?:x(\d+))?", kind)
    if found is None:
        raise PtxError(f"unknown type .{kind}")
    return int(found[1]) * int(found[2] or 1) // 8


def split(text: str, separator: str = ",") -> list[str]:
    """Return the parts of a list, split at separators outside of brackets."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[last:i].strip())
            last = i + 1
    parts.append(text[last:].strip())
    return [part for part in parts if part]


def declaration(text: str) -> Variable:
    """Parse a declaration without its space: `.align 4 .b8 name[16] = {…}`, `.u64 .ptr .global name`."""
    text, _, initial = text.partition("=")
    align = re.search(r"\.align\s+(\d+)", text)
    pointer = text.find(".ptr")
    kind = re.search(r"\.(b8|b16|b32|b64|[usf](?:8|16|32|64)|pred)\b", text)
    name = re.search(r"([$%\w]+)\s*((?:\[\d*\]\s*)*)$", text.strip())
    if kind is None or name is None:
        raise PtxError(f"not a declaration: {text[:80]}")
    count = 1
    for size in re.findall(r"\[(\d*)\]", name[2]):
        count *= int(size or 0)
    is_pointer = pointer >= 0 and align is not None and align.start() > pointer
    values = split(initial.strip().strip("{}")) if initial else []
    return Variable(name[1], kind[1], count, int(align[1]) if align and not is_pointer else 0, values)


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def matching(text: str, at: int, pair: str = "{}") -> int:
    """Return the position of the bracket that closes the one at `at`."""
    depth = 0
    for found in re.compile(f"[{re.escape(pair)}]").finditer(text, at):
        depth += 1 if found[0] == pair[0] else -1
        if depth == 0:
            return found.start()
    raise PtxError("brackets that do not match")


class Module:
    """A module that is read as far as needed: modules are long, and one kernel is needed."""

    def __init__(self, text: str) -> None:
        self.text = without_comments(text)
        self._heads = {
            found[2]: found
            for found in re.finditer(
                r"^[ \t]*((?:\.(?:visible|weak|extern|func|entry)\s+)*(?:\([^)]*\)\s*)?)([$\w]+)\s*\(",
                self.text,
                re.M,
            )
            if ".func" in found[1] or ".entry" in found[1]
        }
        self._variables: dict[str, tuple[str, Variable]] | None = None

    def function(self, name: str) -> Function | None:
        head = self._heads.get(name)
        if head is None:
            return None
        opening = head.end() - 1
        closing = matching(self.text, opening, "()")
        results = re.search(r"\(([^)]*)\)", head[1])
        parameters, returned = (
            [declaration(part.replace(".param", "")) for part in split(text)]
            for text in (self.text[opening + 1 : closing], results[1] if results else "")
        )
        rest = re.compile(r"[;{]").search(self.text, closing)
        has_body = rest is not None and rest[0] == "{"
        body = self.text[rest.end() : matching(self.text, rest.start())] if rest and has_body else ""
        return Function(name, ".entry" in head[1], parameters, returned, body)

    def variables(self) -> dict[str, tuple[str, Variable]]:
        """Return the variables outside of functions: name -> (space, variable)."""
        if self._variables is None:
            found = re.finditer(
                r"^(?:\.(?:visible|weak|extern)\s+)*\.(global|const|shared)\s+([^;]*);", self.text, re.M
            )
            declared = [(match[1], declaration(match[2])) for match in found]
            self._variables = {variable.name: (space, variable) for space, variable in declared}
        return self._variables


@dataclass
class Statement:
    """A statement. `kind` is label, open, close, directive or instruction."""

    kind: str
    text: str
    guard: str = ""
    op: list[str] = field(default_factory=list)  # the operation's parts, at its dots
    operands: list[str] = field(default_factory=list)


_STATEMENT = re.compile(r"\s*(?:([{}])|([$\w]+)\s*:(?!:)|([^;]*);)")
_INSTRUCTION = re.compile(r"(?:@(!?%?[$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)


def statements(body: str) -> list[Statement]:
    found = []
    for brace, label, text in _STATEMENT.findall(body):
        if brace:
            found.append(Statement("open" if brace == "{" else "close", brace))
        elif label:
            found.append(Statement("label", label))
        elif text.startswith("."):
            found.append(Statement("directive", text))
        elif text:
            match = _INSTRUCTION.fullmatch(text)
            if match is None:
                raise PtxError(f"not an instruction: {text[:80]}")
            op = match[2].replace("::", "__").split(".")
            found.append(Statement("instruction", text, match[1] or "", op, split(match[3])))
    return found
