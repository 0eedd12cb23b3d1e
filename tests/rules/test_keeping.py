"""Which results a cache may keep."""

from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.messages import Response
from mcp_tool_filter.rules.actions import may_be_kept
from tests.rules.judging import single


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("{}", True),
        ('{"isError":false,"resultType":"complete"}', True),
        ('{"isError":true}', False),
        (r'{"\u0069sError" : true }', False),
        ('{"isError":false,"isError":true}', False),
        ('{"IsError":true}', False),
        ('{"resultType":"input_required","inputRequests":{}}', False),
        ('{"resultType":"some later one"}', False),
        ('{"resultType":null}', False),
        ('{"content":[{"isError":true}]}', True),
    ],
)
def test_only_final_results_are_kept(result: str, expected: bool) -> None:
    """A failure, or a question of the upstream, is no answer to the next who asks."""
    message = single(f'{{"jsonrpc":"2.0","id":1,"result":{result}}}')
    assert isinstance(message, Response)
    assert message.result is not None
    assert may_be_kept(message.place.text, message.result) is expected
