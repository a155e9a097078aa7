"""The container's packages have exact versions, which fit what spac needs."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_of_the_container_has_a_version_that_fits():
    lines = (ROOT / "tools" / "container.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = ("chat", "server", "hf")
    needs = [*project["dependencies"], *(need for name in named for need in extras[name])]
    for need in (each for each in map(Requirement, needs) if each.name != "spac"):
        assert need.specifier.contains(versions[canonicalize_name(need.name)]), need
    pinned = (ROOT / "LLAMA_CPP_VERSION").read_text().split()[1]
    assert versions["llama-cpp-python"] == pinned
    assert (ROOT / "Dockerfile").read_text().count("-c tools/container.txt") == 2
