"""Run `python -m spac` with a server that refuses heavy requests at once."""

from __future__ import annotations

import runpy

from spac.serve import front

front.PAUSES_S = (0.0, 0.0)
runpy.run_module("spac", run_name="__main__", alter_sys=True)
