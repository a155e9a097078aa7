"""The simulated device is the usual one after each test of models too."""

from tests.engine.conftest import usual_device

__all__ = ["usual_device"]
