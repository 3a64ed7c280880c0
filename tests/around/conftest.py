from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Dynamo keeps compiled code by function, so what one test compiled would count against another's limit.

    A module whose tests share a compiled model calls it `shared`.
    """
    yield
    if "shared" not in request.fixturenames:
        torch._dynamo.reset()
