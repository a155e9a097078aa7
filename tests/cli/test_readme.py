"""README.md stays short. The options, variables and files that it and the pages of docs/ name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spac import env
from spac.cli.llama_cpp_options import foreign_options
from spac.model.known import MODELS
from tests.cli.options_page import PROGRAMS, parser_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# options.md is made by a program, and the ledger names options that are gone.
PAGES = {
    path.name: path.read_text()
    for path in (ROOT / "docs").rglob("*.md")
    if path.name not in ("options.md", "ledger.md")
}
NOT_OURS = {"build", ".venv", ".git", "node_modules", ".pytest_cache", ".hypothesis"}
DOCUMENTS = [path for path in sorted(ROOT.rglob("*.md")) if not NOT_OURS & set(path.relative_to(ROOT).parts)]
LINK = re.compile(r"(?<!`)\[[^\]`]*(?:`[^`]*`[^\]`]*)*\]\(([^()\s]+)\)")


def rows(text):
    """Return the cells of each row of a text's tables, without heads."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    rules = {i for i, row in enumerate(lines) if set("".join(row)) <= set("-: ")}
    return [[cell.strip() for cell in row] for i, row in enumerate(lines) if not {i, i + 1} & rules]


def options_in(text):
    """Return the options in a text's code, without the commands of other programs."""
    spans = [span for span in re.findall(r"`([^`]+)`", text) if not re.match(r"python|pip|\.venv|-D", span)]
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", "\n".join(spans)))


def known_options():
    actions = [action for name in PROGRAMS for action in parser_of(name)._actions]
    return {flag for action in actions for flag in action.option_strings}


def test_it_has_130_lines_at_most():
    assert len(README.splitlines()) <= 130


def test_its_first_two_commands_are_the_installations():
    """`.ci/run` takes them from here."""
    first, second = re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)[:2]
    assert first.count("\n") == second.count("\n") == 1
    assert first.endswith("python -m spac.run\n")
    assert second.endswith("python -m pytest -n 2\n")


def test_it_has_four_options():
    section = README[README.index("## The four options") : README.index("## How it works")]
    assert len(rows(section)) == 4
    named = options_in("\n".join(row[0] for row in rows(section)))
    assert {"--target", "--slots", "--vram-limit", "--ctx"} <= named


@pytest.mark.parametrize("name", ["README.md", *sorted(PAGES)])
def test_every_option_of_the_tables_exists(name):
    text = README if name == "README.md" else PAGES[name]
    named = options_in("\n".join(" ".join(row) for row in rows(text)))
    unknown = named - known_options() - set(foreign_options("run"))
    assert not unknown


def test_every_variable_exists():
    known = {value.name for value in vars(env).values() if hasattr(value, "name")}
    files = [ROOT / "CMakeLists.txt", *filter(Path.is_file, (ROOT / "cmake").iterdir())]
    cmake = "".join(path.read_text() for path in files)
    for name, text in {"README.md": README, **PAGES}.items():
        for variable in re.findall(r"(?<![\w/])SPAC_\w+", text):
            assert variable in known or re.search(rf"\b{variable}\b", cmake), f"{name}: {variable}"


def anchors(path):
    """Return the anchors of a document's headings, as repositories' pages make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.is_file(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_links_are_found():
    assert LINK.findall("[a](b.md), [`c`](d.md#e) and ![f](g.png)") == ["b.md", "d.md#e", "g.png"]
    assert len(LINK.findall(README)) > 10


def test_the_memory_table_is_its_arithmetic():
    """docs/quickstart.md has the formula: share = (0.95 GPU memory - (file - experts) - 1.6 GB) / experts."""
    text = PAGES["quickstart.md"]
    [cards] = re.findall(r"^\| model and quantization .*$", text, re.MULTILINE)
    sizes = [int(size) for size in re.findall(r"on (\d+) GB", cards)]
    table = [row for row in rows(text) if len(row) == len(sizes) + 5 and row[1].endswith(" GB")]
    known, named = {model.name: model for model in MODELS}, []
    for model, file, experts, layers, *cells, host in table:
        file, experts = float(file.split()[0]), float(experts.split()[0])
        for name in re.findall(r"`(.+?)`", model):
            named.append(name)
            found = known[name]
            assert (found.file_gb, found.experts_gb, found.quant) == (file, experts, model.split(", ")[1])
            assert layers == f"{found.n_expert_layers} × {found.n_expert}"
        n_layers, n_experts = map(int, layers.split(" × "))
        assert 1e6 < experts * 1e9 / (n_layers * n_experts) < 15e6
        room = [0.95 * size * 1.073741824 - (file - found.rows_gb - experts) - 1.6 for size in sizes]
        shares = [f"{min(1, each / experts):.0%}".replace("%", " %") if each > 0 else "–" for each in room]
        assert cells == shares
        assert file < 0.9 * float(host.split()[0]) * 1.073741824
    assert named == list(known)
