from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Dynamo keeps compiled code by function, so what one test compiled would count against another's limit."""
    yield
    torch._dynamo.reset()
