"""The records of a run: its statistics, prediction statistics, recordings and timelines."""

from spac.stats.run_stats import SCHEMA, Meter, Part, RunStats, Setting, ratio

__all__ = ["SCHEMA", "Meter", "Part", "RunStats", "Setting", "ratio"]
