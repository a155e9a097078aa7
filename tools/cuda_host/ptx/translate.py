"""Translate a kernel of a PTX module to C++ for the CPU, with lanes.h, numbers.h and matrices.h.

Registers become unsigned variables, and labels stay labels. An unknown instruction becomes a complaint that
stops the kernel where it gets there.
"""

from __future__ import annotations

import re

from . import arithmetic, choosing, memory, threads  # noqa: F401  (they fill the table)
from .module import Function, Module, PtxError, Statement, Variable, declaration, split, statements, width
from .operands import INSTRUCTIONS, Place

WORDS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
SHARED_ALIGN = 128


def aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name.lstrip("%"))


class Translation:
    """A kernel and the functions that it calls, as C++."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.globals: dict[str, str] = {}  # name -> definition
        self.shared: dict[str, int] = {}  # name -> offset
        self.shared_size = 0
        self.functions: dict[str, str] = {}  # name -> definition, in the order in which they were finished
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
            values.append(self.immediate(value))
        kind = WORDS[width(variable.type)]
        text = ", ".join(f"static_cast<{kind}>({value})" for value in values)
        name = f"G_{identifier(variable.name)}[{max(variable.count, 1)}]"
        return f"alignas({max(variable.alignment, 8)}) {kind} {name} = {{{text}}};"

    @staticmethod
    def immediate(text: str) -> str:
        if text[:2] in ("0f", "0F"):
            return f"0x{text[2:]}u"
        if text[:2] in ("0d", "0D"):
            return f"0x{text[2:]}ull"
        value = int(text.rstrip("U"), 0)
        return f"{value}ll" if value < 1 << 63 else f"{value}ull"

    def function(self, name: str) -> str:
        """Translate a function. Return its C++ name."""
        called = f"F_{identifier(name)}"
        if name in self.functions:
            return called
        function = self.module.function(name)
        if function is None or not function.body:
            raise PtxError(f"a call of {name}, which the module does not have")
        self.functions[name] = ""
        text = Body(self, function).text()
        del self.functions[name]
        self.functions[name] = text
        return called

    def source(self, entry: str) -> str:
        kernel = self.module.function(entry)
        if kernel is None or not kernel.is_entry:
            raise PtxError(f"the module has no kernel {entry}")
        called = self.function(entry)
        offsets, sizes, at = [], [], 0
        for parameter in kernel.parameters:
            at = aligned(at, parameter.alignment)
            offsets.append(at)
            sizes.append(parameter.size)
            at += parameter.size
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
            f"const uint32_t offsets[] = {{{', '.join(map(str, [*offsets, 0]))}}};",
            f"const uint32_t sizes[] = {{{', '.join(map(str, [*sizes, 0]))}}};",
            f"const bool waits = {str(waits is not None).lower()};",
            f"const Kernel kernel = {{{called}, dynamic_shared, waits, {len(sizes)}, offsets, sizes}};",
            "} // namespace",
            'extern "C" const Kernel * ptx_kernel() { return &kernel; }',
            'extern "C" int ptx_run(const Launch * launch) { return Runner(kernel, *launch).run() ? 0 : 1; }',
        ]
        return "\n".join(parts) + "\n"


def head(function: Function | None) -> str:
    assert function is not None
    name = f"F_{identifier(function.name)}"
    return (
        f"{name}(Lane & L, const char * P)"
        if function.is_entry
        else f"{name}(Lane & L, char * const * RET, char * const * ARG)"
    )


class Body(Place):
    """The body of one function."""

    def __init__(self, translation: Translation, function: Function) -> None:
        self.translation = translation
        self.function = function
        self.scopes: list[dict[str, str]] = [{}]  # declared name -> C++ name
        self.declared: dict[str, str] = {}  # C++ name -> type of word
        self.families: list[tuple[str, str]] = []  # registers declared by number: prefix, type
        self.spaces: dict[str, tuple[str, str]] = {}  # C++ name of a variable -> (space, address)
        self.depots: list[str] = []
        self.targets: dict[str, list[str]] = {}
        self.n_scopes = 0
        at = 0
        for i, parameter in enumerate(function.parameters):
            at = aligned(at, parameter.alignment)
            place = f"P + {at}" if function.is_entry else f"ARG[{i}]"
            self.scopes[0][parameter.name] = key = f"param {parameter.name}"
            self.spaces[key] = ("param", f"({place})")
            at += parameter.size
        for i, result in enumerate(function.results):
            self.scopes[0][result.name] = key = f"param {result.name}"
            self.spaces[key] = ("param", f"RET[{i}]")

    # --- names

    def lookup(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        for prefix, kind in self.families:
            if re.fullmatch(re.escape(prefix) + r"\d+", name):
                self.scopes[0][name] = key = f"R_{identifier(name)}"
                self.declared[key] = kind
                return key
        return None

    def word_type(self, name: str) -> str:
        key = self.lookup(name)
        if key is None or key not in self.declared:
            raise PtxError(f"{name} is not a register")
        return self.declared[key]

    def symbol(self, name: str) -> tuple[str, str] | None:
        key = self.lookup(name)
        if key is not None:
            return self.spaces.get(key)
        return self.translation.symbol(name)

    # --- statements

    def text(self) -> str:
        every = statements(self.function.body)
        for statement in every:  # lists of targets may stand behind the branch
            if statement.kind == "label":
                label = statement.text
            elif statement.kind == "directive" and statement.text.startswith(".branchtargets"):
                self.targets[label] = split(statement.text.removeprefix(".branchtargets"))
        lines = []
        for statement in every:
            lines.append(self.statement(statement))
        registers = "\n".join(f"  {kind} {name}{{}};" for name, kind in self.declared.items())
        code = "\n".join(line for line in lines if line)
        return (
            f"void {head(self.function)} {{\n{registers}\n"
            + "\n".join(self.depots)
            + f"\n{code}\n  return;\n}}\n"
        )

    def statement(self, statement: Statement) -> str:
        match statement.kind:
            case "label":
                return f"{self.label(statement.text)}:;" if statement.text not in self.targets else ""
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

    def label(self, name: str) -> str:
        return f"L_{identifier(name)}"

    def directive(self, text: str) -> None:
        kind, _, rest = text.partition(" ")
        kind = kind.split("\t")[0]
        rest = text[len(kind) :].strip()
        if kind == ".reg":
            found = re.match(r"\.(\w+)\s+(.*)", rest, re.S)
            if found is None:
                raise PtxError(f"not a declaration: {text}")
            word = "bool" if found[1] == "pred" else WORDS[width(found[1])]
            for name in split(found[2]):
                family = re.fullmatch(r"([$%\w]+)<\d+>", name)
                if family is not None:
                    self.families.append((family[1], word))
                else:
                    key = f"R_{identifier(name)}_s{self.n_scopes}"
                    self.scopes[-1][name] = key
                    self.declared[key] = word
        elif kind in (".local", ".param"):
            variable = declaration(rest)
            key = f"D_{identifier(variable.name)}_s{self.n_scopes}"
            self.scopes[-1][variable.name] = key
            self.spaces[key] = (kind[1:], key if kind == ".param" else f"reinterpret_cast<uint64_t>({key})")
            self.depots.append(f"  alignas(16) char {key}[{max(variable.size, 1)}];")
        elif kind == ".shared":
            variable = declaration(rest)
            key = f"{self.function.name} {variable.name}"
            self.translation.place_shared(variable, key)
            self.scopes[-1][variable.name] = key
            self.spaces[key] = ("shared", f"{self.translation.shared[key]}u")
        elif kind not in (".pragma", ".loc", ".branchtargets", ".callprototype", ".file"):
            raise PtxError(f"unknown directive {text[:60]}")

    def instruction(self, statement: Statement) -> str:
        op = statement.op
        make = INSTRUCTIONS.get(op[0])
        if make is None:
            raise PtxError("unknown operation")
        return make(self, op[1:], statement.operands)

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
        if name.startswith("%"):
            raise PtxError("a call by address")
        called = self.translation.function(name)
        lists = [", ".join([*map(self.parameter, names), "nullptr"]) for names in (results, arguments)]
        return f"char * ret[] = {{{lists[0]}}}; char * arg[] = {{{lists[1]}}}; {called}(L, ret, arg);"

    def parameter(self, name: str) -> str:
        found = self.symbol(name)
        if found is None:
            raise PtxError(f"{name} is not a parameter")
        return found[1]


def translate(text: str, entry: str) -> tuple[str, list[str]]:
    """Return C++ for the kernel `entry`, and the instructions that are not translated. Raise PtxError."""
    translation = Translation(Module(text))
    return translation.source(entry), translation.unknown
