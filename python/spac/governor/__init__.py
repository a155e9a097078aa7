"""The governors, which choose the draft length of every step.

A governor keeps it fixed, or solves MoE-SpeQ's Amortization Roofline online.
"""

from spac.governor.base import FixedGovernor, Governor
from spac.governor.batch import BatchGovernor
from spac.governor.roofline import RooflineGovernor

__all__ = [
    "BatchGovernor",
    "FixedGovernor",
    "Governor",
    "RooflineGovernor",
]
