"""The user's file of default options is read before the command line, and its faults are one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spac.cli import config_file
from spac.cli.parser import Parser
from spac.errors import InputError
from spac.model.hub import Name
from tests.cli.options_page import parser_of
from tests.cli.test_readme import PAGES


@pytest.fixture
def config(monkeypatch, tmp_path):
    """Return a function that writes the file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(text):
        path = tmp_path / "spac" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def parsed(program, *words):
    parser = parser_of(program)
    assert isinstance(parser, Parser)
    return parser.parse_args(words), parser.notes


def test_the_example_of_the_documents(config):
    [example] = re.findall(r"```toml\n(.*?)```", PAGES["install.md"], re.DOTALL)
    config(example)
    assert (parsed("serve")[0].port, parsed("run")[0].ctx) == (9000, 8192)
    assert parsed("chat")[0].target == Path("gpt-oss-20b")


def test_tables_by_program(config):
    path = config(
        "[all]\nctx = 8192\nvram_limit = '8G'\n[run]\ntemp = 0.5\nstop = ['a', 'b']\necho = true\n"
        "[serve]\nport = 9000\nprefill-assistant = false\nflash-attn = 'on'\n[chat]\nctx = 2048\n"
    )
    run, notes = parsed("run", "--temp", "0.7", "--stop", "c")
    assert (run.ctx, str(run.vram_limit), run.temp, run.stop, run.echo) == (
        8192, "8.0 GiB", 0.7, ["a", "b", "c"], True,
    )  # fmt: skip
    assert notes == [f"{path} gives --ctx, --vram-limit, --temp, --stop, --echo"]
    serve, _ = parsed("serve")
    assert (serve.ctx, serve.port, serve.prefill_assistant, serve.flash_attn) == (8192, 9000, False, "on")
    assert parsed("chat")[0].ctx == 2048
    assert parsed("chat", "-c", "1024")[0].ctx == 1024
    options, notes = parsed("models")
    assert (hasattr(options, "vram_limit"), notes) == (False, [])


def test_variables_go_before_the_file(config, monkeypatch):
    config("[serve]\nport = 9000\nctx = 4096\n")
    monkeypatch.setenv("LLAMA_ARG_PORT", "9001")
    options, _ = parsed("serve")
    assert (options.port, options.ctx) == (9001, 4096)


@pytest.mark.parametrize("words", [["-m", "x.gguf"], ["x.gguf"], ["-hf", "a/b"], ["a/b"]])
def test_another_model_drops_the_files_model(config, words):
    config("[all]\ntarget = 'gpt-oss-120b'\ndraft = 'gpt-oss-20b'\nctx = 512\n")
    options, _ = parsed("chat")
    assert (options.target, options.draft) == (Path("gpt-oss-120b"), Path("gpt-oss-20b"))
    options, _ = parsed("chat", *words)
    assert (hasattr(options, "draft"), options.ctx) == (False, 512)
    found = getattr(options, "target", None), options.hf_repo
    assert found in ((Path("x.gguf"), None), (None, Name("a/b")))


def test_a_draft_without_a_model_stays(config):
    config("[run]\ndraft = 'd.gguf'\n")
    assert parsed("run", "-m", "x.gguf")[0].draft == Path("d.gguf")


@pytest.mark.parametrize(("text", "said"), [
    ("[run]\nctxx = 3", "[run] ctxx: spac run has no option --ctxx"),
    ("[all]\nport = 3", "[all] port: spac run has no option --port (keys of [all] are options of run, "),
    ("[run]\nhelp = true", "[run] help: spac run has no option --help"),
    ("[run]\nctx = 'many'", "[run] ctx: must be a whole number, 0 to "),
    ("[run]\nctx = true", "[run] ctx: must be a text or a number, not True"),
    ("[run]\nctx = [1, 2]", "[run] ctx: must be a text or a number, not [1, 2]"),
    ("[run]\necho = 'yes'", "[run] echo: must be true or false, not 'yes'"),
    ("[run]\nstats = 'all'", "[run] stats: invalid choice: 'all'"),
    ("[run]\nslots = '200%'", "[run] slots: the share 200% is not within 0% to 100%"),
    ("[walk]\nctx = 3", "'walk' is not one of the tables [all], [run], [chat], [serve]"),
    ("ctx = 3", "'ctx' is not one of the tables"), ("[run", "not valid TOML: "),
])  # fmt: skip
def test_faults_name_the_file_and_the_key(config, capsys, text, said):
    path = config(text)
    with pytest.raises(SystemExit) as end:
        parsed("run", "-p", "x")
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"spac run: error: {path}: {said}")
    assert err.count("\n") == 1


def test_help_comes_with_a_faulty_file(config, capsys):
    config("[run")
    with pytest.raises(SystemExit) as end:
        parsed("run", "--help")
    assert (end.value.code, "--prompt" in capsys.readouterr().out) == (0, True)


def test_without_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file.read() == {}
    assert parsed("run")[1] == []
    (tmp_path / "spac" / "config.toml").mkdir(parents=True)
    with pytest.raises(InputError, match=r"config\.toml: cannot be read: "):
        config_file.read()
