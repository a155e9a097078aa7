"""Provide real text: questions for a chat, and the documentation strings of Python's standard library."""

from __future__ import annotations

import importlib
import inspect

_OPENINGS = ("Explain", "Tell me a short story about", "Give me facts about", "Write a letter about")
_SUBJECTS = (
    "the moon", "prime numbers", "a lost dog", "the city of Paris", "friendship", "a healthy breakfast",
    "Python dictionaries", "elephants",
)  # fmt: skip
QUESTIONS = tuple(f"{opening} {subject}." for opening in _OPENINGS for subject in _SUBJECTS)
_MORE_OPENINGS = ("What is", "Write a poem about")
_MORE_SUBJECTS = (
    "the sun", "dogs", "a birthday", "the history of Rome", "computers", "a storm at sea", "healthy sleep",
    "mathematics", "music", "the ocean", "trees", "a small village", "electricity", "winter", "cooking rice",
    "a good teacher", "the brain", "bread", "spiders", "honesty", "lists in Python", "files", "the internet",
    "maps", "football", "gold", "a secret", "trains", "volcanoes", "money", "water", "birds",
)  # fmt: skip
MORE_QUESTIONS = tuple(
    f"{opening} {subject}." for subject in _MORE_SUBJECTS for opening in (*_OPENINGS, *_MORE_OPENINGS)
)
"""The questions that a prediction layer learns from."""

MODULES = (
    "os", "asyncio", "unittest", "email.message", "json", "inspect", "typing", "re", "socket", "zipfile",
    "tarfile", "csv", "datetime", "enum", "itertools", "pickle", "urllib.request", "http.client", "ast",
    "uuid", "tempfile", "hashlib", "configparser", "doctest", "io", "multiprocessing",
)  # fmt: skip
HELD_OUT = (
    "argparse", "bisect", "calendar", "collections", "contextlib", "decimal", "difflib", "functools",
    "heapq", "logging", "pathlib", "random", "shutil", "statistics", "string", "subprocess", "textwrap",
    "threading",
)  # fmt: skip
"""The modules that no model is made from, so that their text can measure one."""
_SHORTEST = 300


def chat_prompt(question: str) -> str:
    """Return a question in the form of ChatML, which SmolLM2 was trained on."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def docstrings(modules: tuple[str, ...]) -> list[str]:
    """Return the long documentation strings of the modules' public names, in a fixed order, each once."""
    found: dict[str, None] = {}
    for name in modules:
        module = importlib.import_module(name)
        names = (each for each in sorted(vars(module)) if not each.startswith("_"))
        texts = (inspect.getdoc(getattr(module, each)) for each in names)
        found |= dict.fromkeys(text for text in texts if text and len(text) > _SHORTEST)
    return list(found)


def pieces(text: str, n: int, length: int = 800) -> list[str]:
    """Return up to `n` pieces of a text at even distances, of `length` characters each."""
    starts = range(0, max(1, len(text) - length), max(length, len(text) // n))
    return [text[start : start + length] for start in starts][:n]
