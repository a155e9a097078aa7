"""The laboratory of the session's tests, and the results of both libraries."""

from tests.backend.conftest import ours, reference
from tests.session.conftest import lab

__all__ = ["lab", "ours", "reference"]
