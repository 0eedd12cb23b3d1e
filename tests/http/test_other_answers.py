"""What an answer may be that is no message."""

from __future__ import annotations

import pytest

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.bodies import could_show_tool, refuse_non_text, refuse_partial
from mcp_tool_filter.protocol.limits import Limits
from tests.make import definition

RM = definition("rm")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Accepted",
        b"Not Found: rm",
        b"<html>rm</html>",
        b"<!DOCTYPE html><script>x={'inputSchema':1}</script>",
        b"\x89PNG\r\n\x1a\n\xff",
        b'{"error":"invalid_token"}',
        b'{"name":"rm","description":"a page"}',
        b'{"tools":[{"name":"read","inputSchema":{}}]}',
        b'"text"',
        b"1",
    ],
)
def test_bodies_without_a_hidden_tool_may_pass(body: bytes) -> None:
    assert not could_show_tool(body, {"rm"}, Limits())


@pytest.mark.parametrize(
    "body",
    [
        b'{"tools":[%s]}' % RM,
        b"[%s]" % RM,
        b'{"tools":[%s]' % RM,
        b'{"tools":[{"name":"rm","description":"cut o',
        b" [{'name':'rm'}]",
        b"\xef\xbb\xbf{'name':'rm'}",
        b"\0{\0",
        b"data: %s\n\n" % RM,
        b'data: {"name":"rm","input\\u0053chema":{}}\n\n',
        b"x" + RM,
        RM + RM,
        RM.decode().encode("utf-16"),
        b"<!-- %s -->" % RM,
    ],
    ids=ascii,
)
def test_bodies_that_some_client_reads_as_a_hidden_tool_may_not_pass(body: bytes) -> None:
    assert could_show_tool(body, {"rm"}, Limits())


@pytest.mark.parametrize(
    ("status", "content_type"),
    [
        (206, "application/json"),
        (200, "application/json; charset=utf-16"),
        (200, 'application/json;charset = "utf-7"'),
        (200, "application/json; charset*=utf-7''x"),
        (200, "text/html; charset=utf-8; charset=utf-32"),
    ],
)
def test_partial_content_and_unusual_charsets_are_refused(status: int, content_type: str) -> None:
    with pytest.raises(ProtocolError):
        refuse_partial(status, content_type)


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "text/html; charset=ISO-8859-1", "text/x; charset=UTF8"],
)
def test_ascii_compatible_charsets_are_accepted(content_type: str) -> None:
    refuse_partial(200, content_type)


def test_a_body_labelled_as_json_must_be_text() -> None:
    refuse_non_text("application/json", b"not JSON, but text")
    refuse_non_text("image/png", b"\xff")
    with pytest.raises(ProtocolError):
        refuse_non_text("application/problem+json", b"\x1f\x8b")
