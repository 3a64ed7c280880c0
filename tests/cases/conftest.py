from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Dynamo keeps compiled code by function, so what one test compiled would count against another's limit.

    Tests that share a compiled model call it `shared`.
    """
    alone = "shared" not in request.fixturenames
    if alone:
        torch._dynamo.reset()
    yield
    if alone:
        torch._dynamo.reset()
