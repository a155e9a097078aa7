"""Unit times that cannot be are refused."""

from __future__ import annotations

import pytest

from spac.errors import InputError
from spac.scheduler.cost import UnitCosts


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-9])
def test_what_cannot_be_a_time_is_refused(value):
    with pytest.raises(InputError, match="gpu_expert"):
        UnitCosts(cpu_pair=1, gpu_expert=value, upload=0)
