"""Making a model without its bytes, or with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from zcompiler.errors import ZinfError
from zcompiler.torch_compat.tensors import NO_VALUES, shapes_only

Made = TypeVar("Made")


class Build(Protocol):
    """A way to make something; `what` is how errors call it."""

    def __call__(self, make: Callable[[], Made], what: str) -> Made: ...


def built(make: Callable[[], Made], what: str) -> Made:
    """What `make` returns, its tensors without bytes however large they are. ZinfError, naming `what` it makes, if it
    looks at values."""
    try:
        with shapes_only():
            return make()
    except NO_VALUES as error:
        raise ZinfError(
            f"{what} looks at the values of tensors while it is made ({error}), and there are none: make it for real "
            "and call zcompiler.schedule(model, inputs, ...) in Python"
        ) from error


def with_bytes(make: Callable[[], Made], what: str) -> Made:
    """What `make` returns, as it is."""
    return make()
