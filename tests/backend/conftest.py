"""The results of the stock library for a module's `cases`, and those of spac's."""

from dataclasses import replace

import pytest

from tests.forked import run_worker
from tools.compare import Job, Run, compare


@pytest.fixture(scope="module")
def reference(cases, reference_lib, tmp_path_factory):
    plain = [replace(case, runs=(Run(),), tensor_split=(), slot_layers=()) for case in cases.values()]
    folder = tmp_path_factory.mktemp("reference")
    return run_worker("reference", Job(tuple(plain)), folder, lib_path=reference_lib)


@pytest.fixture(scope="module")
def ours(cases, tmp_path_factory):
    return run_worker("spac", Job(tuple(cases.values())), tmp_path_factory.mktemp("spac"))


@pytest.fixture(scope="module")
def equal(reference, tmp_path_factory):
    """Return a function that runs a job, whose logits have to be the reference's, and returns the result."""

    def run(job: Job):
        result = run_worker("spac", job, tmp_path_factory.mktemp("spac"))
        assert [str(found) for case in job.cases for found in compare(case, result, reference)] == []
        return result

    return run
