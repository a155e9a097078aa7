"""Clients work with the server: those of tools.clients that are installed for the tests."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.cli.conftest import ONE_THREAD
from tools.clients.__main__ import checks
from tools.clients.serving import served
from tools.clients.table import CLIENTS

pytestmark = pytest.mark.nightly

PACKAGES = {"openai": "openai", "anthropic": "anthropic", "langchain": "langchain_openai"}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served(tmp_path_factory.mktemp("clients"), *ONE_THREAD) as url:
        yield url


@pytest.mark.parametrize("name", PACKAGES)
def test_a_client(url, tmp_path, name):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed: pip install -e '.[test]' brings it")
    (client,) = [each for each in CLIENTS if each.name == name]
    made = dict(checks(client, tmp_path, url, python=sys.executable))
    assert len(made) > 6
    assert not {check: fault for check, fault in made.items() if fault}
