"""The engine generates text with a target, an optional draft, a device and a scheduler.

Example:
    with Engine(EngineConfig(target="model.gguf", draft="draft.gguf")) as engine:
        for piece in engine.generate("def fibonacci(n):", max_tokens=100):
            print(piece, end="", flush=True)
"""

from spac.config import EngineConfig, SamplingConfig
from spac.engine.engine import Engine
from spac.engine.generation import Generation
from spac.errors import InputError
from spac.model.pair import LoadProgress
from spac.scheduler import Scheduler
from spac.stats.recording import Recorder

__all__ = [
    "Engine",
    "EngineConfig",
    "Generation",
    "InputError",
    "LoadProgress",
    "Recorder",
    "SamplingConfig",
    "Scheduler",
]
