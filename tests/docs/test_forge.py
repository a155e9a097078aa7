"""The files for the forge and editors are well formed, and name commands, files and versions that exist."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import spac
from tests.cli.options_page import PROGRAMS, parser_of
from tests.cli.test_readme import PAGES

ROOT = Path(__file__).resolve().parents[2]
FORGE = ROOT / ".github"
FORMS = sorted((FORGE / "ISSUE_TEMPLATE").iterdir())
WORKFLOWS = sorted((FORGE / "workflows").iterdir())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_everything_is_seen():
    assert {path.name for path in FORMS} == {"card.yml", "fault.yml", "idea.yml"}
    assert {path.name for path in WORKFLOWS} == {"ci.yml", "release.yml"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form(path):
    form = read(path)
    assert set(form) == {"name", "description", "title", "body"}
    fields = [item["id"] for item in form["body"]]
    assert len(fields) == len(set(fields))
    for item in form["body"]:
        assert item["type"] in {"dropdown", "input", "textarea"}
        assert item["attributes"]["label"]
    for command in re.findall(r"`spac ([^`]+)`", path.read_text(encoding="utf-8")):
        program, *words = shlex.split(command)
        assert program in PROGRAMS
        parser_of(program).parse_args(words)


def test_pages_name_forms_that_exist():
    named = re.findall(r"the form \*([^*]+)\*", PAGES["cards.md"])
    assert named
    assert set(named) <= {read(path)["name"] for path in FORMS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow(path):
    """Its commands are parts of .ci/run or modules of the tree."""
    parts = re.search(r"case \$part in (.*?)\) ;;", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    for job in read(path)["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
        assert commands
        for part in re.findall(r"^\.ci/run(?: (\w+))?$", commands, re.MULTILINE):
            assert part in ("", *parts[1].split(" | "))
        for module in re.findall(r"-m (tools\.\w+)", commands):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


def test_pushes_are_checked_by_parts_and_nights_by_all():
    jobs = read(FORGE / "workflows" / "ci.yml")["jobs"].values()
    runs = {job["steps"][-1]["run"]: job["if"] for job in jobs}
    assert set(runs) == {".ci/run lint", ".ci/run test", ".ci/run"}
    assert "push" in runs[".ci/run lint"] == runs[".ci/run test"]
    assert "schedule" in runs[".ci/run"]


def test_hooks_are_tools_of_the_extra_dev():
    [repository] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    tools = {re.split(r"==", need)[0] for need in PROJECT["project"]["optional-dependencies"]["dev"]}
    assert repository["repo"] == "local"
    assert {hook["entry"].split()[0] for hook in repository["hooks"]} == {"ruff", "clang-format"} <= tools


def test_editors_get_the_formatters_lines():
    text = (ROOT / ".editorconfig").read_text(encoding="utf-8")
    config = configparser.ConfigParser()
    config.read_string("[top]\n" + text)
    assert int(config["*.py"]["max_line_length"]) == PROJECT["tool"]["ruff"]["line-length"]
    [columns] = re.findall(r"^ColumnLimit: (\d+)$", (ROOT / ".clang-format").read_text(), re.MULTILINE)
    assert config["*.{cpp,h,md}"]["max_line_length"] == columns


def test_the_citation_is_of_this_version_and_of_the_papers():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == spac.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    titles = re.findall(r"^## (MoE-\w+|\w+-MoE)$", PAGES["papers.md"], re.MULTILINE)
    assert [each["title"].split(":")[0] for each in citation["references"]] == titles
    assert all(each["authors"] for each in citation["references"])


def test_the_form_of_a_change_asks_for_test_page_and_removal():
    text = (FORGE / "pull_request_template.md").read_text(encoding="utf-8")
    assert [word for word in ("test", "page", "removes") if word not in text] == []
