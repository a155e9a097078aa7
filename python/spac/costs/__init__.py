"""What things cost on this machine with a model: unit times that governor, balancer and prefill share."""

from spac.costs.model import SCHEMA, Costs, ExpertCosts, Layer, LiveCosts

__all__ = ["SCHEMA", "Costs", "ExpertCosts", "Layer", "LiveCosts"]
