"""Errors that the user can act on: what, where, the numbers, the remedy, in one message."""


class ZinfError(RuntimeError):
    """Anything zinf refuses or cannot do."""


class DoesNotFit(ZinfError):
    """No plan stays inside the memory limit; the message says the smallest limit that would do."""
