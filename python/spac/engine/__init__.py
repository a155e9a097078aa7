"""The engine generates text with a target, an optional draft, a device and a scheduler.

Example:
    with Engine(EngineConfig(target="model.gguf", draft="draft.gguf")) as engine:
        for piece in engine.generate("def fibonacci(n):", max_tokens=100):
            print(piece, end="", flush=True)
"""

from spac.config import EngineConfig, SamplingConfig
from spac.costs.estimator import CostEstimator
from spac.engine.engine import Engine
from spac.engine.events import Events
from spac.engine.expert_cache import ExpertCache
from spac.engine.generation import Generation
from spac.engine.run_files import RunFiles
from spac.errors import InputError
from spac.governor import FixedGovernor, Governor, RooflineGovernor
from spac.model.c_api import Model, TokenArray
from spac.model.pair import LoadProgress, ModelPair
from spac.scheduler import Scheduler
from spac.stats import Setting
from spac.stats.prediction import PredictionStats
from spac.stats.recording import Recorder

__all__ = [
    "CostEstimator",
    "Engine",
    "EngineConfig",
    "Events",
    "ExpertCache",
    "FixedGovernor",
    "Generation",
    "Governor",
    "InputError",
    "LoadProgress",
    "Model",
    "ModelPair",
    "PredictionStats",
    "Recorder",
    "RooflineGovernor",
    "RunFiles",
    "SamplingConfig",
    "Scheduler",
    "Setting",
    "TokenArray",
]
