"""A short run of the state machine at each door. `python -m tests.conversations` makes long ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conversations.doors import DOORS, FRESH, setups_of
from tests.conversations.machine import machine_of
from tests.conversations.setups import Models
from tests.serve.conftest import Server

pytestmark = pytest.mark.nightly

EXAMPLES = {"engine": 5, "engine-4": 3, "llama": 6, "llama-4": 3, "serve": 5, "serve-4": 3}


@pytest.fixture(scope="module")
def models(programs, tmp_path_factory):
    Server.programs = programs
    return Models(tmp_path_factory.mktemp("conversations"))


@pytest.mark.parametrize("door", DOORS)
def test_every_answer_is_that_of_a_door_begun_anew(door, models):
    """The examples are the same each time."""
    setups = [models.setup(name) for name in setups_of(door)]
    machine = machine_of(DOORS[door], FRESH[door], setups)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES[door], stateful_step_count=14, deadline=None, database=None,
            derandomize=True, phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    assert machine.tally.n_answers > 0
