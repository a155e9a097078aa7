"""The draft length of every step: fixed, or MoE-SpeQ's Amortization Roofline solved online."""

from spac.governor.base import FixedGovernor, Governor
from spac.governor.pace import Pace
from spac.governor.roofline import RooflineGovernor

__all__ = ["FixedGovernor", "Governor", "Pace", "RooflineGovernor"]
