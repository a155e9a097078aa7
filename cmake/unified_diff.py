"""Apply unified diffs (as `git diff` and `diff -u` write them) strictly. Every context line must match.

There is no fuzz. A patch that fits the pinned source only in part must fail the build, and must not change
other places. A hunk may have moved, if its old lines occur exactly once in the file.
"""

import re
from collections.abc import Callable

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(Exception):
    """A diff cannot be read or does not fit. The message names the file and the hunk."""


def file_name(header: str) -> str | None:
    """Return the path in a line `--- a/path` or `+++ b/path`, or None for /dev/null."""
    path = header[4:].split("\t")[0].strip()
    if path == "/dev/null":
        return None
    return path.split("/", 1)[1] if path.startswith(("a/", "b/")) else path


def read_hunk(lines: list[str], start: int) -> tuple[int, list[str], list[str], int]:
    """Return the hunk whose header is lines[start].

    The tuple has the old line number, the old lines, the new lines, and the index of the line after the hunk.
    """
    match = HUNK.match(lines[start])
    if match is None:
        raise PatchError(f"not a hunk header: {lines[start]!r}")
    n_old, n_new = (int(match[i]) if match[i] is not None else 1 for i in (2, 4))
    old: list[str] = []
    new: list[str] = []
    at = start + 1
    while len(old) < n_old or len(new) < n_new:
        line = lines[at] if at < len(lines) else "?"
        # Editors and mail programs remove the blank that marks an empty context line.
        mark, text = line[:1] or " ", line[1:]
        if mark not in " +-":
            raise PatchError(f"the hunk {lines[start]!r} is cut off")
        if mark in " -":
            old.append(text)
        if mark in " +":
            new.append(text)
        at += 1
    return int(match[1]), old, new, at


def replace(content: list[str], old: list[str], new: list[str], at: int, where: str) -> int:
    """Replace the lines `old`, which are expected at index `at`. Return the index after the new lines."""
    if content[at : at + len(old)] != old:
        found = [i for i in range(len(content) - len(old) + 1) if content[i : i + len(old)] == old]
        if len(found) != 1 or not old:
            raise PatchError(f"{where} fits {'nowhere' if not found else f'{len(found)} places'}")
        at = found[0]
    content[at : at + len(old)] = new
    return at + len(new)


def apply_patch(
    patch: str, read: Callable[[str], str], report: Callable[[str], None] | None = None
) -> dict[str, str]:
    """Return the new content of every file that `patch` changes or adds.

    `read(name)` returns the present content of a file. Raise PatchError if the patch does not fit, or if it
    deletes a file. Renaming is not supported either. Lines end in "\\n". With `report`, hunks that do not fit
    are left out, and `report` gets the fault of each.
    """
    lines = patch.removesuffix("\n").split("\n")
    result: dict[str, str] = {}
    at = 0
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")):
            at += 1
            continue
        source, target = file_name(lines[at]), file_name(lines[at + 1])
        if target is None:
            raise PatchError(f"it deletes {source}, which is not supported")
        content = [] if source is None else read(source).split("\n")
        at, shift = at + 2, 0
        while at < len(lines) and lines[at].startswith("@@"):
            where = f"the hunk {lines[at]!r} of {target}"
            number, old, new, at = read_hunk(lines, at)
            if not old and source is not None:
                raise PatchError(f"{where} has no context lines")
            try:
                after = replace(content, old, new, max(number - 1 + shift, 0), where)
                shift = after - (number - 1 + len(old))
            except PatchError as fault:
                if report is None:
                    raise
                report(str(fault))
            if at < len(lines) and lines[at].startswith("\\"):
                at += 1
        if at < len(lines) and lines[at][:1] in ("+", "-", " ") and not lines[at].startswith(("--- ", "-- ")):
            raise PatchError(f"{where} is longer than its header says")
        result[target] = "\n".join(content) + ("\n" if source is None else "")
    if not result:
        raise PatchError("there is no unified diff in it")
    return result
