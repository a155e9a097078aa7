"""llama.cpp's own server tests, run against `spac serve`.

The tests come unchanged out of the pinned sdist. `python -m tests.serve.llama_cpp` runs all of them that
`listed` does not name; further words are pytest's. `.ci/run` does this.
"""
