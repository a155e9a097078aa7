"""The options of an engine, of contexts and of sampling. Each is declared and checked in one place."""

from spac.config.context import CONTEXT_GROUP, ContextConfig
from spac.config.engine import CONTEXT, DRAFT, DRAFT_TYPES, FIXED_LENGTH, LONGEST, EngineConfig
from spac.config.fields import COUNT, PROBABILITY, Range, names_in, option
from spac.config.sampling import SamplingConfig
from spac.config.values import GraphTokens, Slots, StreamBatch, VramLimit

__all__ = [
    "CONTEXT", "CONTEXT_GROUP", "COUNT", "DRAFT", "DRAFT_TYPES", "FIXED_LENGTH", "LONGEST", "PROBABILITY",
    "ContextConfig", "EngineConfig", "GraphTokens", "Range", "SamplingConfig", "Slots", "StreamBatch",
    "VramLimit", "names_in", "option",
]  # fmt: skip
