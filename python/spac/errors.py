"""The errors of spac. Each has one line that says what is wrong and, if there is one, the remedy."""


def one_line(text: str) -> str:
    """Return `text` on one line, with escapes for characters that a terminal cannot show.

    Messages quote user input, which may have such characters.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


class SpacError(Exception):
    """The base class of every error that spac raises on purpose."""


class InputError(SpacError, ValueError):
    """An error for a file, number or name that cannot be used. Programs exit with code 2."""


class OutOfMemoryError(SpacError, MemoryError):
    """An error for a request that does not fit into the device's or the host's memory."""

    whole = False
    """True if the model was loaded without the split, which takes more of the device's memory."""


class DeviceError(SpacError):
    """An error for a device that refused or failed."""


class InternalError(SpacError):
    """An error for a failed internal check. It is a fault of spac, and not of its caller."""


class Cancelled(SpacError):  # noqa: N818  (what happened, not a fault)
    """An exception for work that a call to cancel() stopped."""
