"""What the tests of patterns share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jsregex.javascript import Node, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    yield from running_node()


@pytest.fixture(scope="module")
def folding_node() -> Iterator[Node]:
    """JavaScript with the flag ``i``."""
    yield from running_node("i")
