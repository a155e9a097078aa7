"""A short run of the state machine at each door. `python -m tests.conversations` makes long ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conversations.doors import DOORS, FRESH, setups_of
from tests.conversations.machine import Conversations, machine_of
from tests.conversations.setups import Models
from tests.forked import Programs
from tests.serve.conftest import Server

EXAMPLES = {
    "engine": 7,
    "engine-4": 5,
    "llama": 8,
    "llama-4": 5,
    "serve": 5,
    "serve-4": 3,
}


@pytest.fixture(scope="module")
def models(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Models:
    Server.programs = programs
    return Models(tmp_path_factory.mktemp("conversations"))


@pytest.mark.parametrize("door", DOORS)
def test_every_answer_is_that_of_a_door_begun_anew(door: str, models: Models) -> None:
    names = setups_of(door)
    machine = machine_of(DOORS[door], FRESH[door], [models.setup(name) for name in names])
    run(machine, EXAMPLES[door])
    assert machine.tally.n_answers > 0


def run(machine: type[Conversations], n_examples: int) -> None:
    """Run examples that are the same each time."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=n_examples, stateful_step_count=14, deadline=None, database=None,
            derandomize=True, phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
