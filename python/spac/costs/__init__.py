"""The unit times of a model on this machine, which governor, balancer and prefill streaming share."""

from spac.costs.model import Costs, ExpertCosts, LiveCosts

__all__ = ["Costs", "ExpertCosts", "LiveCosts"]
