"""Code that Python runs when a process starts. `spac exec` puts this folder on PYTHONPATH.

An import of llama_cpp then ends with a call of `spac.enable`. A process that does not import llama_cpp loads
nothing of spac. A Python of another environment, which has no spac, keeps its own llama_cpp.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _Finder:
    """A meta path finder that finds llama_cpp where the others do, and enables spac after its import."""

    enables_spac = True
    """Tells spac's own finder to stay behind this one."""
    _is_searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of llama_cpp, with a loader that enables spac; None for other modules."""
        if name != "llama_cpp" or self._is_searching or importlib.util.find_spec("spac") is None:
            return None
        from spac import _library

        _library.install()
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            _enable_after(spec.loader)
        return spec


def _enable_after(loader: importlib.abc.Loader) -> None:
    """Make `loader` enable spac after it has executed its module."""
    execute = loader.exec_module

    def execute_and_enable(module: ModuleType) -> None:
        execute(module)
        from spac import env
        from spac.llama_cpp_python.enable import enable

        enable(**json.loads(env.EXEC.get() or "{}"))

    loader.exec_module = execute_and_enable  # type: ignore[method-assign]


def _run_the_other() -> None:
    """Run the sitecustomize module that this one hides, if the environment has one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
sys.meta_path.insert(0, _Finder())
_run_the_other()
