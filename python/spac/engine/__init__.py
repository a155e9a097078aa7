"""The engine generates text with a target, an optional draft, a device and a scheduler.

Example:
    with Engine(EngineConfig(target="model.gguf", draft="draft.gguf")) as engine:
        for piece in engine.generate("def fibonacci(n):", max_tokens=100):
            print(piece, end="", flush=True)
        print(engine.chat([{"role": "user", "content": "hello"}]).message()["content"])
"""

from spac.config import EngineConfig, SamplingConfig
from spac.engine.chat import Chat
from spac.engine.chat_format import Delta
from spac.engine.engine import Engine
from spac.engine.generation import Generation
from spac.errors import InputError
from spac.model.pair import LoadProgress
from spac.scheduler import Scheduler
from spac.stats.recording import Recorder

__all__ = [
    "Chat",
    "Delta",
    "Engine",
    "EngineConfig",
    "Generation",
    "InputError",
    "LoadProgress",
    "Recorder",
    "SamplingConfig",
    "Scheduler",
]
