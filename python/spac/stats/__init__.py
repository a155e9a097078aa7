"""The records of a run: its statistics, and its recording."""

from spac.stats.run_stats import SCHEMA, Meter, RunStats, Setting

__all__ = ["SCHEMA", "Meter", "RunStats", "Setting"]
