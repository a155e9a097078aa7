"""Sphinx builds these pages by this configuration: `python -m sphinx -E -W --keep-going docs build/docs`."""

import re

project = "spac"
copyright = "2026, spac authors"
extensions = ["myst_parser"]
html_title = "spac"
html_copy_source = False
myst_heading_anchors = 3  # as on the repository's pages, so that links to headings are checked
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]
exclude_patterns = ["conf.py"]


def prepare(_app, name, source):
    """Have links to documents elsewhere in the repository lead to copies of these. Make the table of contents
    from the links of index.md. The pages themselves stay plain Markdown."""
    up = r"\.\./" * (name.count("/") + 1)  # out of docs/
    source[0] = re.sub(rf"\]\(({up}[^)#]+\.md)\)", r"](path:\1)", source[0])
    if name == "index":
        pages = dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.md[)#]", source[0]))
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def setup(app):
    """Register the above."""
    app.connect("source-read", prepare)
    return {"parallel_read_safe": True}
