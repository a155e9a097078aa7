"""The library loads or refuses each file that passes the check. It does not end the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from spac.errors import InputError
from spac.model.gguf.check import check_model
from spac.model.gguf.header import read_header
from tests.conftest import ROOT, TinyModel
from tools.models import Shape

N_CHANGED = 25
TINY = Shape(n_layer=2, n_embd=32, n_ff=32, n_ff_exp=32)


def changed_files(model: Path, folder: Path, seed: int) -> list[Path]:
    """Write copies with one or two bytes of the header changed. Return those that pass the check."""
    rng = random.Random(seed)
    content = model.read_bytes()
    end = read_header(model).data_offset
    passed = []
    for i in range(N_CHANGED):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(end)
            changed[at] = rng.choice((changed[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
        path = folder / f"{model.stem}-{i}.gguf"
        path.write_bytes(changed)
        try:
            check_model(path)
            passed.append(path)
        except InputError:
            path.unlink()
    return passed


def test_what_passes_does_not_end_the_process(tiny_model: TinyModel, tmp_path: Path) -> None:
    families = ("qwen3moe", "deepseek2", "gpt-oss")
    good = [tiny_model(family, TINY) for family in families]
    changed = [path for i, model in enumerate(good) for path in changed_files(model, tmp_path, i)]
    paths = [*good, *changed]
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.gguf.loader"],
        input="".join(f"{path}\n" for path in paths),
        cwd=ROOT,
        # Without the last variable, an aborting process runs a debugger on itself.
        env={**os.environ, "OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(paths)
    assert answers[: len(good)] == ["ok"] * len(good)
    assert [f"{p}: {a}" for p, a in zip(paths, answers, strict=True) if a not in ("ok", "refused")] == []
    assert answers.count("ok") > 10
    assert answers.count("refused") > 10
