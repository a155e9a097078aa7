"""Bad input gives one line that says what is wrong, and exit code 2. Files stay as they were."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import gguf
import numpy as np
import pytest

from spac.cli import main
from tests.cli.conftest import ONE_THREAD, Outcome
from tools.models import write_projector
from tools.models.projector import png


@pytest.fixture(scope="module")
def files(tmp_path_factory, target, draft, tiny_model):
    """Return a folder with what the commands below name: good models, and files that are none."""
    folder = tmp_path_factory.mktemp("files")
    data = target.read_bytes()
    written = {
        "target.gguf": data, "draft.gguf": draft.read_bytes(), "new.gguf": data.replace(b"qwen3", b"qwen9"),
        "empty.gguf": b"", "text.gguf": b"no model\n" * 99, "short.gguf": b"GG", "fugg.gguf": b"FUGG" * 99,
        **{f"cut{n}.gguf": data[: len(data) * n // 1000] for n in (1, 300, 999)},
        "prompt.txt": b"def f(", "latin1.txt": b"caf\xe9", "long.txt": b"abc " * 300, "notes.txt": b"notes",
        "t.jinja": b"{{ messages[0].content }}", "chat.json": b'{"messages": []}', "a.png": png(40, 40),
    }  # fmt: skip
    for name, content in written.items():
        (folder / name).write_bytes(content)
    (folder / "folder.gguf").mkdir()
    shutil.copy(tiny_model("qwen3moe", types={"ffn_gate_inp": "F64"}), folder / "f64.gguf")
    shutil.copy(tiny_model("qwen3moe", head_dim=48), folder / "heads.gguf")
    shutil.copy(tiny_model("qwen3", n_vocab=900), folder / "words.gguf")
    write_projector(folder / "mmproj.gguf", "gemma3", 64)
    writer = gguf.GGUFWriter(folder / "lora.gguf", "qwen3moe")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 1.0)
    for name, shape in (("lora_a", (4, 64)), ("lora_b", (64, 4))):
        writer.add_tensor(f"blk.0.attn_q.weight.{name}", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


CASES = {
    "run -q -p x -m": """
        gone.gguf => gone.gguf*no such file
        folder.gguf => folder.gguf: this is a folder
        empty.gguf => empty.gguf*empty
        text.gguf => text.gguf*GGUF
        short.gguf => short.gguf*GGUF
        fugg.gguf => fugg.gguf*GGUF
        cut1.gguf => cut1.gguf*past the end
        cut300.gguf => cut300.gguf*cut off
        cut999.gguf => cut999.gguf*cut off
        lora.gguf => lora.gguf*LoRA
        f64.gguf => f64.gguf*ffn_gate_inp
        new.gguf => new.gguf*qwen9moe
        target.gguf -md short.gguf => short.gguf
        target.gguf -md words.gguf => words.gguf*target.gguf*vocabularies differ
        target.gguf -f prompt.txt => not allowed with
        x.gguf -hf a/b => --target and a target by name both say which model runs
        x.gguf -md y.gguf -hfd a/b => --draft and a draft by name both say
        gpt-oss-2b => gpt-oss-2b: there is no such file or short name; did you mean gpt-oss-20b
    """,
    "run -q -p x": """
        -md draft.gguf => a draft without a target: add --target
        -hfd a/b => a draft without a target
        -hff a.gguf => add --hf-repo OWNER/REPO
        -hf a => 'a' is not OWNER/REPO or OWNER/REPO:QUANT, nor a short name: deepseek-v2-lite, gpt-
        -hf gpt-oss-2b => nor a short name: gpt-oss-20b
        glm-4.5-ari => 'glm-4.5-ari' belongs to no option and is no model's name; did you mean glm
    """,
    "run -q -m target.gguf": """
        -f no.txt => no.txt: the prompt cannot be read
        -f latin1.txt => latin1.txt: byte 3 is not UTF-8
        -f - => no prompt: give --prompt TEXT
        -p '' => prompt is empty
        -f long.txt -c 256 => 256
        -f prompt.txt --stats-file prompt.txt => is the prompt
    """,
    "run -q -m target.gguf -p x": """
        --max-tokens -2 => -1 to 2147483647
        --draft-type guess => ngram-simple
        --draft-type draft-simple => --draft FILE
        --draft-length 3 --draft-max 4 => --draft-length is every draft's, --draft-max the longest
        --latency-budget 20 --draft-length 3 => leave out --draft-length and
        --slots 150% => 0% to 100%
        --slots many => 'auto', a count (64), or a share
        --slots -3 => negative
        --scheduler belady => lru
        --stats xml => json
        --what => --what
        --device CUDA7 => simulated
        --device simulated,simulated1 => unknown device 'simulated1': choose one of auto
        --device simulated --main-gpu 1 => --main-gpu 1: there is one device (simulated): give 0
        --device simulated -ts 1,1 => --tensor-split 1,1 has 2 parts
        --device simulated -sm row => --split-mode/-sm: 'row' divides each matrix
        --grammar 'root ::= [' => the grammar cannot be used: unexpected end of input
        --grammar 'root ::= x' => the grammar cannot be used: the rule 'x' is not defined
        --grammar 'root ::= "a" )' => used: expecting newline or end (line 1, column 14)
        --grammar 'root ::= (((' => used: expecting ')' (line 1, column 13)
        --grammar-file nowhere.gbnf => nowhere.gbnf: the grammar cannot be read
        --grammar 'root ::= [0-9]' -j {} => grammar and --json-schema both say
        -j { => the JSON schema is not valid JSON
        -j 3 => is not an object
        -j '{"$ref": "https://a/b"}' => does not begin with #/
        -j '{"type": "nothing"}' => cannot be made a grammar
        -jf nowhere.json => nowhere.json: the JSON schema cannot be read
        -ctv q8_0 -fa off => needs flash attention
        -m heads.gguf -ctk q8_0 -fa on => block size 32 does not divide n_embd_head_k=48
        -l 99999+1 => --logit-bias names token 99999
        --lora nowhere.gguf => nowhere.gguf: the LoRA adapter cannot be read
        --image a.png => add --mmproj FILE
        --mmproj mmproj.gguf --image no.png => no.png: the image cannot be read: No such file
        --mmproj mmproj.gguf --image notes.txt => image cannot be decoded
        --mmproj draft.gguf --image a.png => this is no projector
        --record run.json => run.json: a recording is a .npz file
        --record no/file.npz => no/file.npz: cannot be written
        --state no/file => no/file: cannot be written
        --stats-file no/file => no/file: cannot be written
        --state notes.txt => not a saved state
        --record ./target.gguf => --record: target.gguf is the target
        -md draft.gguf --state draft.gguf => --state: draft.gguf is the draft
        --record a.npz --stats-file a.npz => a.npz is the file of --record
        --grammar-file t.jinja --record t.jinja => is the grammar
        -jf chat.json --record chat.json => is the schema
        --lora a,t.jinja --stats-file t.jinja => is an adapter
    """,
    "bench -t 1 --device simulated --repeat 1 -n 8": """
        --schedulers lru belady => moe-spac
        --schedulers lru:depth=2 => depth
        --schedulers => --schedulers
        --slots 10% 150% => argument --slots: the share 150% is not within 0% to 100%
        --slots some => 'auto', a count
        --draft-lengths 4 many => roofline
        --draft-lengths 64 => 0 to 63
        --draft-lengths 2 --draft-min 3 => --draft-min 3 is more than
        --draft-lengths roofline --deterministic => --deterministic
        --draft-lengths 0 2 -m target.gguf => --draft FILE
        --baseline vllm => cpu
        --repeat 0 => 1 to 1000
        --max-tokens 0 => 1 to 2147483647
        --device CUDA7 => simulated
        --device cpu --slots 4 => --device cpu
        --prompt '' => empty
        --file no.txt => no.txt
        --file latin1.txt => byte 3 is not UTF-8
        --file prompt.txt --json prompt.txt => --json: prompt.txt is the prompt
        --json no/bench.json => no/bench.json
        -m target.gguf -md draft.gguf --json draft.gguf => --json: draft.gguf is the draft
        --target no.gguf => no.gguf
        --draft draft.gguf => --target
        --state warm => --state
        -c 64 -q -f long.txt => --ctx
        --submit - --prompt mine => everybody's settings: leave out --prompt
        --submit - --slots 40 => leave out --slots
        --submit - --scheduler lru => leave out --scheduler
    """,
    "": """
        chat -m target.gguf --load chat.json --state chat.json => is the conversation
        serve -m target.gguf --chat-template-file t.jinja --record t.jinja => the chat template
        report chat.json -o chat.json => --output: chat.json is the recording
        report chat.json -o target.gguf => --output: target.gguf is a model
        report chat.json --timeline target.gguf => --timeline: target.gguf is a model
    """,
}
"""Commands by their beginnings, with the words that the line has, in this order, where * stands between."""


def cases():
    for begin, block in CASES.items():
        for line in block.strip().splitlines():
            words, said = line.strip().split(" => ")
            yield pytest.param(
                [*shlex.split(begin), *shlex.split(words)], said, id=f"{begin} {words}".strip()
            )


def state_of(folder):
    found = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (each.st_ino, each.st_size, each.st_mtime_ns) for name, each in found.items()}


@pytest.mark.parametrize(("words", "said"), [*cases()])
def test_bad_input_is_one_line(files, words, said, monkeypatch, capfd):
    before = state_of(files)
    monkeypatch.chdir(files)
    with open(os.devnull) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        try:
            code = main([*words, *(ONE_THREAD if words[0] == "run" else ())])
        except SystemExit as ended:  # raised by argparse
            code = ended.code
    line = Outcome(code, *capfd.readouterr()).refusal
    assert line.startswith(f"spac {words[0]}: error: ")
    at = 0
    for part in said.split("*"):
        assert part in line[at:], line
        at = line.index(part, at) + len(part)
    assert state_of(files) == before


def test_a_context_that_does_not_fit(spac_run, target):
    given = ("-m", target, "-p", "x", "-c", 16_000_000, "--device", "simulated")
    outcome = spac_run(*given, env={"SPAC_SIMULATED_DEVICE": "memory_mb=64"})
    assert "16000000 tokens" in outcome.refusal


def test_a_fault_of_the_simulated_device_names_its_variable(spac_run, target):
    outcome = spac_run("-m", target, "-p", "x", env={"SPAC_SIMULATED_DEVICE": "fault=none-such"})
    assert "SPAC_SIMULATED_DEVICE: unknown fault 'none-such'" in outcome.refusal


def test_a_file_that_may_not_be_read(spac_run, tmp_path, target):
    path = tmp_path / "secret.gguf"
    path.write_bytes(target.read_bytes())
    path.chmod(0)
    try:
        path.open("rb").close()
    except PermissionError:
        assert "ermission" in spac_run("-m", path, "-p", "x").refusal
    else:
        pytest.skip("this user may read every file")
