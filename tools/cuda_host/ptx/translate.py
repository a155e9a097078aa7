"""Translate a kernel of a PTX module to C++ for the CPU, with lanes.h, runner.h, numbers.h and matrices.h.

Registers become unsigned variables, and labels stay labels. An unknown instruction becomes a complaint that
stops the kernel where it gets there.
"""

from __future__ import annotations

import itertools
import re

from . import arithmetic, choosing, memory, threads  # noqa: F401  (they fill the table)
from .module import Function, Module, PtxError, Statement, Variable, declaration, split, statements, width
from .operands import INSTRUCTIONS, Place, identifier, label, literal

WORDS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
SHARED_ALIGN = 128


def aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment


def offsets_of(variables: list[Variable]) -> list[int]:
    """Return the offsets of variables that lie one behind the other."""
    found, at = [], 0
    for variable in variables:
        at = aligned(at, variable.alignment)
        found.append(at)
        at += variable.size
    return found


class Translation:
    """A kernel and the functions that it calls, as C++."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.globals: dict[str, str] = {}  # name -> definition
        self.shared: dict[str, int] = {}  # name -> offset
        self.shared_size = 0
        self.functions: dict[str, str] = {}  # name -> definition
        self.unknown: list[str] = []

    def place_shared(self, variable: Variable, key: str) -> None:
        if key not in self.shared:
            offset = aligned(self.shared_size, max(variable.alignment, 16))
            self.shared[key] = offset
            self.shared_size = offset + variable.size

    def symbol(self, name: str) -> tuple[str, str] | None:
        """Return the space of a module's variable, and its address as C++ (shared: its offset)."""
        found = self.module.variables().get(name)
        if found is None:
            return None
        space, variable = found
        if space == "shared":
            if variable.count == 0:
                return "shared", "dynamic_shared"
            self.place_shared(variable, name)
            return "shared", f"{self.shared[name]}u"
        if name not in self.globals:
            self.globals[name] = ""  # a variable may name itself
            self.globals[name] = self.definition(variable)
        return "global", f"reinterpret_cast<uint64_t>(G_{identifier(name)})"

    def definition(self, variable: Variable) -> str:
        values = []
        for value in variable.initial:
            if not re.match(r"-?\d", value):
                raise PtxError(f"{variable.name} is initialized with an address")
            values.append(literal(value))
        kind = WORDS[width(variable.type)]
        text = ", ".join(f"static_cast<{kind}>({value})" for value in values)
        name = f"G_{identifier(variable.name)}[{max(variable.count, 1)}]"
        return f"alignas({max(variable.alignment, 8)}) {kind} {name} = {{{text}}};"

    def function(self, name: str) -> str:
        """Translate a function. Return its C++ name."""
        called = f"F_{identifier(name)}"
        if name in self.functions:
            return called
        function = self.module.function(name)
        if function is None or not function.body:
            raise PtxError(f"a call of {name}, which the module does not have")
        self.functions[name] = ""  # a function may call itself
        self.functions[name] = Body(self, function).text()
        return called

    def source(self, entry: str) -> str:
        kernel = self.module.function(entry)
        if kernel is None or not kernel.is_entry:
            raise PtxError(f"the module has no kernel {entry}")
        called = self.function(entry)
        offsets = offsets_of(kernel.parameters)
        copies = "".join(
            f"std::memcpy(to + {offset}, from[{i}], {parameter.size}); "
            for i, (offset, parameter) in enumerate(zip(offsets, kernel.parameters, strict=True))
        )
        size = offsets[-1] + kernel.parameters[-1].size if offsets else 0
        bodies = "\n".join(self.functions.values())
        waits = re.search(
            r"\b(together|sync_\w+|shuffle|ballot|match_any|reduce|stop|end|multiply|load_matrices|transpose)(<|\()",
            bodies,
        )
        static_size = aligned(self.shared_size, SHARED_ALIGN)
        parts = [
            '#include "matrices.h"',
            "using namespace ptx;",
            "namespace {",
            f"constexpr uint64_t dynamic_shared = {static_size};",
            *self.globals.values(),
            *(f"void {head(self.module.function(name))};" for name in self.functions),
            bodies,
            f"const bool waits = {str(waits is not None).lower()};",
            f"const Kernel kernel = {{{called}, dynamic_shared, waits}};",
            "} // namespace",
            "// Copies a launch's arguments to where the kernel expects them. Returns their size in bytes.",
            'extern "C" uint64_t ptx_pack(void ** from, char * to) {',
            f"  if (to != nullptr) {{ {copies}}}",
            f"  return {size};",
            "}",
            'extern "C" int ptx_run(const Launch * launch) { return Runner(kernel, *launch).run() ? 0 : 1; }',
        ]
        return "\n".join(parts) + "\n"


def head(function: Function | None) -> str:
    assert function is not None
    parameters = "const char * P" if function.is_entry else "char * const * RET, char * const * ARG"
    return f"F_{identifier(function.name)}(Lane & L, {parameters})"


class Body(Place):
    """The body of one function."""

    def __init__(self, translation: Translation, function: Function) -> None:
        super().__init__(translation.symbol)
        self.translation = translation
        self.function = function
        self.depots: list[str] = []
        self.n_scopes = 0
        for i, offset in enumerate(offsets_of(function.parameters)):
            place = f"P + {offset}" if function.is_entry else f"ARG[{i}]"
            self.declare(function.parameters[i].name, f"param {i}", "param", f"({place})")
        for i, result in enumerate(function.results):
            self.declare(result.name, f"result {i}", "param", f"RET[{i}]")

    def declare(self, name: str, key: str, space: str, address: str) -> None:
        self.scopes[-1][name] = key
        self.spaces[key] = (space, address)

    # --- statements

    def text(self) -> str:
        every = statements(self.function.body)
        for name, statement in itertools.pairwise(every):  # lists of targets may stand behind the branch
            if statement.kind == "directive" and statement.text.startswith(".branchtargets"):
                self.targets[name.text] = split(statement.text.removeprefix(".branchtargets"))
        lines = [self.statement(statement) for statement in every]
        registers = [f"  {kind} {name}{{}};" for name, kind in self.registers.items()]
        code = [f"void {head(self.function)} {{", *registers, *self.depots, *filter(None, lines)]
        return "\n".join([*code, "  return;", "}", ""])

    def statement(self, statement: Statement) -> str:
        match statement.kind:
            case "label":
                return f"{label(statement.text)}:;" if statement.text not in self.targets else ""
            case "open":
                self.scopes.append({})
                self.n_scopes += 1
                return ""
            case "close":
                self.scopes.pop()
                return ""
            case "directive":
                self.directive(statement.text)
                return ""
        try:
            code = self.instruction(statement)
        except (PtxError, KeyError, IndexError, ValueError) as error:
            self.translation.unknown.append(f"{statement.text} ({error})")
            text = re.sub(r'["\\]', "'", " ".join(statement.text.split()))
            code = f'stop(L, "not translated: {text}");'
        if statement.guard:
            sign, name = ("!", statement.guard[1:]) if statement.guard[0] == "!" else ("", statement.guard)
            return f"  if ({sign}{self.lookup(name)}) {{ {code} }}"
        return f"  {{ {code} }}"

    def directive(self, text: str) -> None:
        kind, *_ = text.split(maxsplit=1)
        rest = text[len(kind) :].strip()
        if kind == ".reg":
            of_type, names = rest.split(maxsplit=1)
            word = "bool" if of_type == ".pred" else WORDS[width(of_type[1:])]
            for name in split(names):
                family = re.fullmatch(r"([$%\w]+)<\d+>", name)
                if family is not None:
                    self.families.append((family[1], word))
                else:
                    self.scopes[-1][name] = key = f"R_{identifier(name)}_s{self.n_scopes}"
                    self.registers[key] = word
        elif kind in (".local", ".param"):
            variable = declaration(rest)
            key = f"D_{identifier(variable.name)}_s{self.n_scopes}"
            address = key if kind == ".param" else f"reinterpret_cast<uint64_t>({key})"
            self.declare(variable.name, key, kind[1:], address)
            self.depots.append(f"  alignas(16) char {key}[{max(variable.size, 1)}];")
        elif kind == ".shared":
            variable = declaration(rest)
            key = f"{self.function.name} {variable.name}"
            self.translation.place_shared(variable, key)
            self.declare(variable.name, key, "shared", f"{self.translation.shared[key]}u")
        elif kind not in (".pragma", ".loc", ".branchtargets", ".callprototype", ".file"):
            raise PtxError(f"unknown directive {text[:60]}")

    def instruction(self, statement: Statement) -> str:
        operation, *parts = statement.op
        if operation == "call":
            return self.call(statement.operands)
        if operation not in INSTRUCTIONS:
            raise PtxError("unknown operation")
        return INSTRUCTIONS[operation](self, parts, statement.operands)

    # --- calls

    def call(self, operands: list[str]) -> str:
        results, arguments = [], []
        rest = list(operands)
        if rest[0].startswith("("):
            results = split(rest.pop(0)[1:-1])
        name = rest.pop(0)
        if rest and rest[0].startswith("("):
            arguments = split(rest.pop(0)[1:-1])
        if name == "vprintf":
            return "" if not results else f"std::memset({self.parameter(results[0])}, 0, 4);"
        if name == "__assertfail":
            return 'stop(L, "an assertion failed");'
        called = self.translation.function(name)  # not for a call by address, which is unknown
        ret, arg = (", ".join([*map(self.parameter, names), "nullptr"]) for names in (results, arguments))
        return f"char * ret[] = {{{ret}}}; char * arg[] = {{{arg}}}; {called}(L, ret, arg);"

    def parameter(self, name: str) -> str:
        found = self.symbol(name)
        if found is None:
            raise PtxError(f"{name} is not a parameter")
        return found[1]


def translate(text: str, entry: str) -> tuple[str, list[str]]:
    """Return C++ for the kernel `entry`, and the instructions that are not translated. Raise PtxError."""
    translation = Translation(Module(text))
    return translation.source(entry), translation.unknown
