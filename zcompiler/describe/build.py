"""Making a model without its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from zcompiler.errors import ZinfError
from zcompiler.torch_compat import NO_VALUES, shapes_only

Made = TypeVar("Made")


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
