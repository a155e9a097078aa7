"""What a run did and cost: its statistics, how predictions came true, recordings and timelines."""

from spac.stats.run_stats import SCHEMA, Meter, RunStats, Setting, ratio

__all__ = ["SCHEMA", "Meter", "RunStats", "Setting", "ratio"]
