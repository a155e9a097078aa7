"""Command lines of llama.cpp have the same meaning here as there, or they are refused."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.cli.llama_cpp_options import _ACCEPTED, _REFUSED, Foreign, foreign_options
from spac.config.values import GpuLayers
from tests.cli.options_page import parser_of

PROGRAMS = ("run", "chat", "serve", "bench")
PARSERS = {name: parser_of(name) for name in PROGRAMS}
FOREIGN = {name: foreign_options(name) for name in PROGRAMS}


class RefusedError(Exception):
    """Message of a parser that would otherwise end the process."""


def refused(_code=0, message=None):
    raise RefusedError(message)


def parsed(program, *words):
    """Return the options and the notes of a command line. Raise RefusedError if the parser refuses it."""
    parser: Any = PARSERS.setdefault(program, parser_of(program))
    parser.exit, parser.notes = refused, []
    return parser.parse_args(list(words)), parser.notes


def refusal(program, *words):
    with pytest.raises(RefusedError) as error:
        parsed(program, *words)
    line = str(error.value)
    assert line.startswith(f"spac {program}: error: ")
    assert line.count("\n") == 1
    return line


# How arguments are read


@pytest.mark.parametrize(("words", "name", "value"), [
    ("-c4096", "ctx", 4096), ("-t8", "threads", 8), ("-n-1", "max_tokens", -1), ("-n -1", "max_tokens", -1),
    ("-n=-1", "max_tokens", -1), ("--ctx_size 512", "ctx", 512), ("-ngl 99", "gpu_layers", GpuLayers(99)),
    ("-ngl -1", "gpu_layers", GpuLayers()), ("-fa on", "flash_attn", "on"), ("-fa 1", "flash_attn", "on"),
    ("-fa", "flash_attn", "on"), ("-fa -ngl 9", "flash_attn", "on"),
    ("--flash-attn disabled", "flash_attn", "off"), ("-p -x", "prompt", "-x"),
    ("-p --nothing", "prompt", "--nothing"), ("-p '- a list'", "prompt", "- a list"),
    ("-r --->", "stop", ["--->"]), ("--stop=--x", "stop", ["--x"]), ("-nkvo", "kv_offload", False),
    ("-nkvo -kvo", "kv_offload", True), ("--no-mmap", "load_mode", "none"),
    ("--mlock", "load_mode", "mmap+mlock"), ("--no-mmap --mlock", "load_mode", "mlock"),
    ("--mlock --no-mmap", "load_mode", "mlock"), ("--mlock --no-mmap --mmap", "load_mode", "mmap+mlock"),
    ("--mmap", "load_mode", "mmap"), ("--rope-scale 4", "rope_freq_scale", 0.25),
    ("--samplers top-k;temp", "samplers", ("top_k", "temperature")),
    ("--sampler-seq kt", "samplers", ("top_k", "temperature")),
    ("-l 5+1.5 --logit-bias 7-inf -l 5-2", "logit_bias", {5: -2.0, 7: float("-inf")}),
    ("--override-kv a=int:1,b=bool:true --override-kv c=str:x", "override_kv", {"a": 1, "b": True, "c": "x"}),
    ("--override-kv c=str:x:y", "override_kv", {"c": "x:y"}),
])  # fmt: skip
def test_arguments_are_read_as_llama_cpp_reads_them(words, name, value):
    options, notes = parsed("run", *shlex.split(words))
    assert getattr(options, name) == value
    assert type(getattr(options, name)) is type(value)
    assert notes == []


def test_adapters_gather(tmp_path):
    (path := tmp_path / "a,b.gguf").touch()  # this file's name has a comma
    words = ("--lora", "a.gguf,b.gguf", "--lora-scaled", "c:d.gguf:-0.5", "--lora", path)
    options, _ = parsed("run", *map(str, words))
    assert [(str(each.path), each.scale) for each in options.lora] == [
        ("a.gguf", 1.0), ("b.gguf", 1.0), ("c:d.gguf", -0.5), (str(path), 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), [
    ("-ngk 3", "unknown option '-ngk'; did you mean -ngl?"),
    ("-temp 3", "unknown option '-temp'; did you mean --temp?"),
    ("--threds 3", "unknown option '--threds'; did you mean --threads?"),
    ("--n-cpu-mo 3", "did you mean --n-cpu-moe?"), ("--xyzzy=3", "unknown option '--xyzzy=3' ("),
    ("-c4k", "unknown option '-c4k'"), ("-nan", "unknown option '-nan'"), ("-ninf", "unknown option '-ninf'"),
    ("-v3", "unknown option '-v3'"), ("-vq", "unknown option '-vq'"), ("--temp", "expected one argument"),
    ("--temp --seed 3", "expected one argument"), ("--stop --", "expected one argument"),
    ("--stop=--", "expected one argument"), ("-ncmoe", "-ncmoe: expected one argument"),
    ("-ncmoe --seed 3", "-ncmoe: expected one argument"),
    ("-fa perhaps", "'perhaps' is not one of on, off, auto"), ("-ctk q7_0", "q8_0"),
    ("-ngl most", "a number of layers, all or auto"), ("--rope-scale 0", "must be a number"),
    ("--rope-scale much", "must be a number"), ("--lora-scaled a.gguf", "'a.gguf' is not FILE:SCALE"),
    ("--lora-scaled a.gguf:b", "'a.gguf:b' is not FILE:SCALE"),
    ("--lora-scaled a.gguf:nan", "the scale of a.gguf is nan"), ("--override-kv a=b", "not KEY=TYPE:VALUE"),
    ("--override-kv a=int:b", "'b' is no int"),
    ("--override-kv a=half:1", "'half' is not one of int, float, bool, str"), ("-l 5", "as in 15043+1"),
    ("--samplers top_k;guess", "'guess' is not one of penalties"),
    ("--sampler-seq kz", "'z' is not one of e penalties"),
])  # fmt: skip
def test_what_is_no_option_is_named(words, said):
    assert said in refusal("run", *shlex.split(words))


LETTERS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=6)


@given(letters=LETTERS)
def test_letters_behind_a_dash_are_one_name(letters):
    known = {**PARSERS["run"]._option_string_actions, **FOREIGN["run"]}
    name = f"-{letters}"
    if name not in known:
        assert f"unknown option '{name}'" in refusal("run", name, "3")


@given(number=st.integers(0, 2**20), program=st.sampled_from(["run", "chat"]))
def test_a_number_behind_a_short_option_is_its_value(number, program):
    together, apart = parsed(program, f"-c{number}")[0], parsed(program, "-c", str(number))[0]
    assert together == apart
    assert together.ctx == number


# The table


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_name_is_in_the_table_twice(program):
    """Two entries with the same name are a fault, because the last one would win."""
    met: dict[str, Foreign] = {}
    for each in (*_ACCEPTED, *_REFUSED):
        for flag in each.flags.split() if not each.programs or program in each.programs else ():
            assert flag not in met, flag
            met[flag] = each
            assert re.fullmatch(r"--?[a-zA-Z][\w.-]*", flag)
    assert met


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_of_the_table_takes_its_values_and_no_more(program):
    """The words behind an option and its values are still read."""
    rest = ["--threads", "3"]
    for flag, option in FOREIGN[program].items():
        if flag in PARSERS[program]._option_string_actions:
            continue
        words = [flag, *["7"] * option.n_values]
        if option.is_refused:
            assert f"error: {flag}: {option.text}" in refusal(program, *words, *rest)
            continue
        options, notes = parsed(program, *words, *rest)
        assert (options.threads, notes) == (3, [f"{flag}: {option.text}"])
        for value in option.maybe:
            assert parsed(program, flag, value, *rest)[0].threads == 3


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("run", "-m M -ngl 99 -c 4096 -fa on -ctk q8_0 -ctv q8_0 --no-mmap -tb 4 -t 4 -ub 1024 -b 2048 -n 64 "
                "-p hi --temp 0.7 --top-k 20 --top-p 0.8 --min-p 0 -s 1 -no-cnv -ncmoe 20 --no-warmup -np 1"),
        ("run", "-m M -ngl all -ot exps=CPU --jinja --color auto --simple-io --no-display-prompt -e -p a "
                "--samplers top_k;top_p;temperature --repeat-penalty 1.1 --no-perf -lv 3 --mlock"),
        ("chat", "-m M -ngl 99 -cnv -sys hello --jinja --color on -i -c 0 -fa auto --no-context-shift -mli"),
        ("serve", "-m M -a name --host 127.0.0.1 --port 8080 -ngl 99 -fa on -c 32768 -np 1 -cb --jinja "
                  "--metrics --no-webui -ctk q8_0 -ctv q8_0 -cmoe --timeout 600 --threads-http 4 -md D "
                  "-ngld 99 --temp 0.7 --spec-draft-n-max 8 --cache-reuse 256 --no-mmap --rope-scaling yarn "
                  "--rope-scale 4 --yarn-orig-ctx 32768"),
    ],
)  # fmt: skip
def test_command_lines_of_llama_cpp(program, words):
    parsed(program, *words.split())


@pytest.mark.parametrize(("program", "words", "said"), [
    ("run", "-mu https://a/b.gguf", "give --hf-repo OWNER/REPO or --target FILE"),
    ("run", "--audio x", "no sound and no video"), ("serve", "-ns 4", "decodes one sequence"),
    ("run", "-ts 3,x", "such as 3,1"), ("run", "-sm row", "give layer, or none"),
    ("run", "-cnv", "use spac chat"), ("chat", "-no-cnv", "use spac run"),
    ("serve", "--dry-base 2", "the server sets no default for it"),
    ("serve", "--ignore-eos", "the server sets no default for it"),
    ("serve", "-j {}", "the server sets no default for it"),
    ("run", "hello", "one model file needs no option, a prompt is given with --prompt"),
    ("run", "a.gguf b.gguf", "'a.gguf' belongs to no option: one model file needs no option, a prompt"),
    ("run", "a.gguf -m b.gguf", "'a.gguf' belongs to no option"),
    ("serve", "a/b -hf c/d", "'a/b' belongs to no option: one model file needs no option (--help"),
    ("serve", "/none/here", "'/none/here' belongs to no option"),
    ("doctor", "-ngl 3", "unknown option '-ngl'"),
])  # fmt: skip
def test_what_is_not_done_is_refused_with_the_remedy(program, words, said):
    assert said in refusal(program, *words.split())


@pytest.mark.parametrize("program", ["run", "chat", "serve", "bench", "doctor"])
def test_a_model_needs_no_option(program, tmp_path):
    options, _ = parsed(program, "a.gguf", "--vram-limit", "8G")
    assert options.target == Path("a.gguf")
    (tmp_path / "blob").touch()
    assert parsed(program, "--vram-limit", "8G", str(tmp_path / "blob"))[0].target == tmp_path / "blob"
    name = parsed(program, "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M")[0].hf_repo
    assert (name.repo, name.quant) == ("Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M")


@pytest.mark.parametrize("words", [["-ns", "1"], ["-ns", "-1"]])
def test_what_asks_for_no_more_than_there_is_is_taken(words):
    [note] = parsed("run", *words)[1]
    assert "leave" not in note


def test_notes_go_to_stderr_and_quiet_keeps_them(spac_run, target):
    words = ("-m", target, "-p", "x", "-n", 1, "-ncmoe", 3, "--stats", "none")
    loud, quiet = spac_run(*words), spac_run(*words, "-q")
    assert (loud.code, quiet.code, quiet.err) == (0, 0, "")
    assert "spac: -ncmoe: every expert is in host memory" in loud.err


# What runs


def test_settings_reach_the_engine(spac_run, target, draft):
    outcome = spac_run(
        "-m", target, "-md", draft, "-p", "def", "-n", 3, "-ngl", 3, "-ngld", 1, "-fa", "on", "-ctk", "q8_0",
        "-ctv", "q8_0", "-ctkd", "q8_0", "--no-mmap", "-tb", 1, "--device", "simulated", "--temp", 0,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "--gpu-layers 3: the last 2 of 3 layers are on simulated;" in outcome.err


def test_a_prompt_s_escapes(spac_run, target):
    def echoed(*arguments):
        outcome = spac_run("-m", target, "-n", 0, "--echo", "-q", "--stats", "none", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    text = r"a\nb\\c\x41\q\"\'\t|"
    assert echoed("-p", text) == text + "\n"
    assert echoed("-p", text, "-e") == "a\nb\\cA\\q\"'\t|\n"
    assert echoed("-p", r"\xe2\x82\xac", "--escape") == "€\n"


def test_the_help_s_first_screen_is_readable(spac_run):
    lines = spac_run("--help", env={"COLUMNS": "100"}).out.splitlines()
    assert lines[0] == "usage: spac run [MODEL] [OPTIONS]"
    assert lines.index("options that matter most:") < 10
    lines = spac_run("--help", "all", env={"COLUMNS": "100"}).out.splitlines()
    assert lines[0] == "usage: spac run [MODEL] [OPTIONS]"
    headings = [line for line in lines if re.fullmatch(r"[a-z ]+:", line)]
    groups = ("options", "text", "engine", "context and memory", "images", "sampling", "output")
    assert headings == [f"{group}:" for group in groups]
