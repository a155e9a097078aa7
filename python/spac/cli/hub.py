"""Options that name a model on a hub instead of a file. Their names are llama.cpp's."""

from __future__ import annotations

import argparse
from pathlib import Path

from spac.errors import InputError
from spac.model.hub.names import Name

NAMED = "OWNER/REPO[:QUANT]"


def add_hub(parser: argparse.ArgumentParser) -> None:
    """Add the options of models by name."""
    group = parser.add_argument_group("models by name, downloaded once (pip install 'spac[hf]')")
    group.add_argument(
        "--hf-repo", "-hf", "-hfr", metavar=NAMED, type=_name,
        help="the model, in place of --target (default of QUANT: Q4_K_M, else Q8_0, else the first file)",
    )  # fmt: skip
    group.add_argument("--hf-file", "-hff", metavar="FILE", help="the model's file in --hf-repo, in place "
                       "of QUANT; the first one of a split model")  # fmt: skip
    group.add_argument("--hf-repo-draft", "-hfd", "-hfrd", "--spec-draft-hf", metavar=NAMED, type=_name,
                       help="the draft model, in place of --draft")  # fmt: skip
    group.add_argument("--hf-token", "-hft", metavar="TOKEN", help="your token for private repositories; "
                       "better given as HF_TOKEN in the environment: others can read options")  # fmt: skip
    group.add_argument("--offline", action="store_true", help="take models from the cache, and download "
                       "nothing")  # fmt: skip


def target_of(options: argparse.Namespace) -> Path | None:
    """Return the target's file, which is downloaded if it is given by name; None if none is given."""
    if options.hf_file and options.hf_repo is None:
        raise InputError("--hf-file is a file of a repository: add --hf-repo OWNER/REPO")
    return _file(options, "target", options.hf_repo, options.hf_file or "")


def draft_of(options: argparse.Namespace) -> Path | None:
    """Return the draft's file, which is downloaded if it is given by name; None if none is given."""
    return _file(options, "draft", options.hf_repo_draft)


def _name(text: str) -> Name:
    try:
        return Name.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _file(options: argparse.Namespace, role: str, name: Name | None, file: str = "") -> Path | None:
    path: Path | None = getattr(options, role, None)
    if name is None:
        return path
    if path is not None:
        raise InputError(f"--{role} and a {role} by name both say which model runs: give one of them")
    from spac.model.hub.download import Access, fetch

    return fetch(name, file, Access(options.hf_token or "", options.offline, options.quiet))
