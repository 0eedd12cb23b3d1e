"""mitmproxy's requests and answers in our terms, and what we change in them."""

from __future__ import annotations

import json

import pytest
from mitmproxy.http import Headers, Request, Response
from mitmproxy.test.tflow import tclient_conn, tflow

from mcp_tool_filter.adapters.mitmproxy.forward.flows import (
    add_cors,
    client_address,
    head_of,
    learn_cors,
    learn_login,
    learn_login_document,
    lost_to,
    names_of,
    our_response,
    prepare_for_upstream,
    put_answer,
    remove_upgrade,
    replace_answer,
    replace_body,
    secure_answer_head,
)
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.cors import CorsMemory
from mcp_tool_filter.http.exchange import Answered
from mcp_tool_filter.http.guard import UpstreamNames
from mcp_tool_filter.http.head import LONGEST_VALUE, MOST_HEADERS
from mcp_tool_filter.http.login_paths import LoginPaths
from tests.make import asking

UPSTREAM = UpstreamNames("http://localhost:3000")


def headers_of(fields: dict[str, str]) -> Headers:
    """``mcp_name`` becomes ``mcp-name``."""
    pairs = ((name.replace("_", "-"), value) for name, value in fields.items())
    return Headers([(name.encode(), value.encode()) for name, value in pairs])


def request(method: str = "POST", path: str = "/mcp", body: bytes = b"", **fields: str) -> Request:
    headers = headers_of(fields)
    return Request.make(method, f"http://localhost:3000{path}", body, headers)


def response(status: int = 200, body: bytes = b"{}", **fields: str) -> Response:
    headers = headers_of(fields)
    return Response.make(status, body, headers)


def test_a_head_has_the_clients_address() -> None:
    assert head_of(request("GET", "/sse?x")).target == "/sse?x"
    assert head_of(request()).address == ""
    assert head_of(request(), tclient_conn()).address == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer", "shown"),
    [(("127.0.0.1", 5), "127.0.0.1:5"), (("::1", 5, 0, 0), "[::1]:5"), (None, "")],
)
def test_the_address_of_a_client_is_shown_with_its_port(
    peer: tuple[str, int] | tuple[str, int, int, int] | None, shown: str
) -> None:
    flow = tflow()
    flow.client_conn = tclient_conn()
    setattr(flow.client_conn, "peername", peer)  # noqa: B010 - None while it connects
    assert client_address(flow) == shown
    assert names_of(flow) == (shown, flow.id)
    assert (client_address(None), names_of(None)) == ("", ("", ""))


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (asking("ping", id="7"), 7),
        (b"[" + asking("ping", id='"a"') + b"," + asking("ping", id="2") + b"]", ["a", 2]),
        (b"no message", None),
    ],
)
def test_each_waiting_request_is_told_of_a_lost_upstream(body: bytes, ids: object) -> None:
    said = json.loads(lost_to(request(body=body)))
    assert ([one["id"] for one in said] if isinstance(said, list) else said["id"]) == ids


def test_an_answer_to_head_has_no_body_of_ours() -> None:
    answered = Answered(400, b'{"id":null}')
    assert our_response(request("HEAD"), answered, None).content == b""
    assert our_response(request(), answered, None).content == answered.body


def test_a_request_asks_for_an_answer_that_we_can_read() -> None:
    asked = request(body=b"{}", accept_encoding="br", range="bytes=0-", if_range="x")
    asked.data.trailers = Headers(x="y")
    prepare_for_upstream(asked, head_of(asked), (("Authorization", "Bearer x"),))
    assert asked.headers["accept-encoding"] == "identity"
    assert "range" not in asked.headers
    assert "if-range" not in asked.headers
    assert asked.get_state()["trailers"] is None
    assert asked.headers["authorization"] == "Bearer x"


def test_the_length_of_a_request_is_the_length_of_its_body() -> None:
    """From HTTP/2 it may come with a wrong one."""
    wrong, chunked = request(body=b"{}"), request(body=b"{}", transfer_encoding="chunked")
    wrong.headers["content-length"] = "99"
    assert "content-length" not in chunked.headers
    for asked in (wrong, chunked):
        prepare_for_upstream(asked, head_of(asked), ())
    assert wrong.headers["content-length"] == "2"
    assert "content-length" not in chunked.headers


def test_another_body_has_headers_of_its_own() -> None:
    asked = request(body=b"old", content_encoding="gzip", mcp_name="a", mcp_method="b")
    replace_body(asked, b"new body", [("mcp-name", "c"), ("mcp-method", None)])
    assert asked.content == b"new body"
    assert asked.headers["content-length"] == "8"
    assert asked.headers["mcp-name"] == "c"
    assert "mcp-method" not in asked.headers
    assert "content-encoding" not in asked.headers


@pytest.mark.parametrize(
    ("connection", "left"),
    [
        ("Upgrade", None),
        ("upgrade, HTTP2-Settings", None),
        ("keep-alive, Upgrade", "keep-alive"),
        ("close", "close"),
    ],
)
def test_refusing_an_upgrade_removes_only_its_headers(connection: str, left: str | None) -> None:
    asked = request("GET", connection=connection, upgrade="websocket", x_other="1")
    remove_upgrade(asked)
    assert asked.headers.get("connection") == left
    assert "upgrade" not in asked.headers
    assert asked.headers["x-other"] == "1"


def test_a_replaced_answer_keeps_the_session_but_no_headers_about_the_old_body() -> None:
    said = response(
        206, b"old", mcp_session_id="s1", etag="x", content_range="bytes 0-2/9",
        content_encoding="gzip", connection="Upgrade", upgrade="h2c",
    )  # fmt: skip
    replace_answer(said, 200, b'{"a":1}')
    assert (said.status_code, said.content) == (200, b'{"a":1}')
    names = {name.lower() for name in said.headers}
    assert names == {"mcp-session-id", "content-type", "content-length"}
    assert said.headers["content-length"] == "7"


@pytest.mark.parametrize(("status", "length"), [(200, "2"), (304, "99"), (204, "99")])
def test_a_wrong_content_length_is_corrected_if_there_is_a_body(status: int, length: str) -> None:
    said = response(status)
    said.headers["content-length"] = "99"
    put_answer(said, None)
    assert said.headers["content-length"] == length


@pytest.mark.parametrize(
    "fields",
    [
        {"transfer_encoding": "gzip"},
        {"x": "a" * (LONGEST_VALUE + 1)},
        {"x": "a\0b"},
        {f"x{number}": "" for number in range(MOST_HEADERS + 1)},
    ],
    ids=["coding", "long", "control", "many"],
)
def test_a_head_that_clients_could_read_differently_is_refused(fields: dict[str, str]) -> None:
    answer = response()
    answer.headers = headers_of(fields)
    with pytest.raises(ProtocolError):
        secure_answer_head(answer, UPSTREAM)


def test_definitions_are_removed_from_a_head() -> None:
    said = response(x_tool='{"name":"rm","inputSchema":{}}', x_other="1")
    said.reason = "inputSchema"
    assert secure_answer_head(said, UPSTREAM)
    assert "x-tool" not in said.headers
    assert said.headers["x-other"] == "1"
    assert said.reason == ""


def test_urls_in_a_head_cannot_bypass_us() -> None:
    ours = response(307, location="http://127.0.0.1:3000/mcp/")
    assert secure_answer_head(ours, UPSTREAM)
    assert ours.headers["location"] == "/mcp/"
    elsewhere = response(307, location="http://elsewhere.example/")
    assert not secure_answer_head(elsewhere, UPSTREAM)
    forward = response(307, location="http://127.0.0.1:3000/mcp/")
    assert secure_answer_head(forward, None)
    assert forward.headers["location"] == "http://127.0.0.1:3000/mcp/"


def test_a_page_reads_our_answer_as_it_reads_the_upstreams() -> None:
    memory = CorsMemory()
    asked = request(origin="http://localhost:6274")
    learn_cors(memory, asked, response(access_control_allow_origin="http://localhost:6274"))
    ours = response()
    add_cors(memory, asked, ours)
    assert ours.headers["access-control-allow-origin"] == "http://localhost:6274"
    other = response()
    add_cors(memory, request(origin="http://localhost:1"), other)
    assert "access-control-allow-origin" not in other.headers


def test_the_paths_of_a_login_are_learned_from_heads_and_documents() -> None:
    paths = LoginPaths("http://localhost:3000")
    learn_login(paths, request("GET", "/authorize?x"), response(302, location="/login?x=1"))
    assert paths.has("GET", "/login")
    document = json.dumps({"token_endpoint": "/oauth/token"}).encode()
    place = request("GET", "/.well-known/oauth-authorization-server")
    learn_login_document(paths, place, response(404, document))
    assert not paths.has("POST", "/oauth/token")
    learn_login_document(paths, place, response(200, document))
    assert paths.has("POST", "/oauth/token")
