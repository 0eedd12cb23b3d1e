"""Fixtures of the tests of forward proxies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import install_error_answers
from tests.adapters.mitmproxy.forward.upstream_failures import answers


@pytest.fixture
def our_error_answers() -> Iterator[None]:
    """Answer with our own error if the upstream fails."""
    install_error_answers(answers)
    yield
    install_error_answers(lambda _flow, _failure: None)
