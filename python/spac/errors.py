"""The errors of spac. Each carries one line that says what is wrong and, where there is one, the remedy."""


def one_line(text: str) -> str:
    """`text` on one line, with what a terminal cannot show as an escape: messages quote what users gave."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


class SpacError(Exception):
    """Base of every error that spac raises on purpose."""


class InputError(SpacError, ValueError):
    """The caller's file, number or name cannot be used; programs exit with code 2."""


class OutOfMemoryError(SpacError, MemoryError):
    """What was asked for does not fit into the device's or the host's memory."""


class DeviceError(SpacError):
    """The device refused or failed."""


class InternalError(SpacError):
    """A check of spac's own failed: a fault of spac, not of its caller."""


class Cancelled(SpacError):  # noqa: N818  (what happened, not a fault)
    """The work was stopped by a call to cancel()."""
