"""A forward proxy's connections: MCP is filtered, everything else keeps its bytes."""

from __future__ import annotations

import gzip
from typing import Any

import brotli
import pytest

from mcp_tool_filter.core.engine.service import Address, Seats, Service
from mcp_tool_filter.core.engine.wire import Fault, RequestHead
from mcp_tool_filter.rooms.forward.passing import ForwardClient, path_of
from tests.core.engine.table import LIST, Client, Table, call, result
from tests.mcp_upstream import tool, tool_list
from tests.raw_client import post
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, answer, chunk
from tests.rows import each_row

ODD = b"X-Odd:  two  spaces \r\nx-ODD:\t\xe9\r\nDate: today\r\n"
EVENT = b"data: %b\n\n"


class Places:
    """Every request goes to one server."""

    def __init__(self, table: Table) -> None:
        self.others = table.service
        self.endpoints: set[str] = set()
        self.asked: list[str] = []
        self.closed: list[str] = []
        table.listener.is_forward = True

    def is_endpoint(self, _at: Address, head: RequestHead) -> bool:
        return path_of(head.target) in self.endpoints

    def service_of(self, _at: Address, head: RequestHead) -> Service:
        self.asked.append(path_of(head.target))
        return self.others

    def note_answer(self, _at: Address, head: RequestHead, status: int) -> None:
        if status < 300:
            self.endpoints.add(path_of(head.target))

    def open_tunnel(self, head: RequestHead, ahead: bytes) -> None:
        raise Fault("CONNECT within a tunnel")

    def note_closed(self, why: str) -> None:
        self.closed.append(why)

    def address_of(self, head: RequestHead) -> Address:
        if head.target.startswith("https:"):
            raise Fault("a scheme that needs a tunnel")
        return Address("upstream", 3000, is_tls=False)

    def for_proxy(self, _head: RequestHead) -> tuple[str, bytes | None] | None:
        return None


class Scene:
    def __init__(self, **options: Any) -> None:
        self.table = Table(**options)
        self.places = Places(self.table)
        self.client = Client(self.table)
        self.client.engine.gone()  # it must take no seat
        self.client.engine = self.engine = ForwardClient(self.places, self.client)

    def says(self, data: bytes, *, cut_at: int = 0) -> bytes:
        """Send a request; return what the newest connection of the server has got since."""
        before = self._got
        self.client.says(data, cut_at=cut_at)
        return self._got[len(before) :]

    @property
    def _got(self) -> bytes:
        return b"".join(link.got for link in self.table.links)

    def answers(self, data: bytes, *, cut_at: int = 0) -> bytes:
        """Let the server answer; return what the client gets."""
        for at in range(0, len(data), cut_at or len(data)):
            self.table.link.says(data[at : at + (cut_at or len(data))])
        return self.client.taken()


REQUESTS = [
    b"GET /a?b HTTP/1.1\r\nHost: x\r\n" + ODD + b"\r\n",
    b"HEAD / HTTP/1.1\r\nhost:x\r\n\r\n", b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\n" + ODD + b"Content-Length: 5\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b'POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{"a":1}',
    b"GET /body HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTrailer: t\r\nTRANSFER-encoding: Chunked\r\n\r\n"
    b'3;ext="x"\r\nhel\r\n002\r\nlo\r\n0\r\nt: u\r\n\r\n',
]  # fmt: skip


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("raw", REQUESTS)
@pytest.mark.parametrize("cut_at", [0, 1, 7])
def test_requests_of_others_keep_their_bytes(scene: Scene, raw: bytes, cut_at: int) -> None:
    for _ in range(2):
        assert scene.says(raw, cut_at=cut_at) == raw
        scene.answers(answer(b"", status="204 No Content"))
    assert len(scene.table.links) == 1
    assert not scene.places.asked


@pytest.mark.parametrize("raw", [
    b"HTTP/1.1 200 Fine, thanks\r\n" + ODD + b"Content-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200\r\nTRANSFER-encoding: chunked\r\n\r\n"
    b"3;x\r\nhel\r\n2\r\nlo\r\n0\r\nt: u\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nLink: </x>\r\n\r\n"
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\n"
    b"data: x\n\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n",
])  # fmt: skip
@pytest.mark.parametrize("cut_at", [0, 1])
def test_answers_of_others_keep_their_bytes(scene: Scene, raw: bytes, cut_at: int) -> None:
    scene.says(REQUESTS[0])
    assert scene.answers(raw, cut_at=cut_at) == raw
    assert scene.client.is_open
    assert scene.says(REQUESTS[0])


def test_an_answer_until_the_end_ends_both(scene: Scene) -> None:
    scene.says(REQUESTS[0])
    raw = b"HTTP/1.0 200 OK\r\n\r\nuntil the end"
    assert scene.answers(raw) == raw
    scene.table.link.ends()
    assert not scene.client.is_open
    assert not scene.client.was_aborted


def test_uploads_and_downloads_are_not_kept(scene: Scene) -> None:
    size, piece = 30_000_000, b"x" * 100_000
    got = scene.says(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
    assert got == b""  # its first byte decides
    for _ in range(size // len(piece)):
        assert scene.says(piece).endswith(piece)
        scene.table.link.got = b""
    assert scene.engine.passing is not None
    assert scene.engine.passing.size == 0


@pytest.mark.parametrize("cut_at", [0, 1])
@pytest.mark.parametrize("target", [b"/mcp", b"http://upstream:3000/mcp"])
def test_mcp_is_judged(scene: Scene, target: bytes, cut_at: int) -> None:
    assert scene.says(post(call("wipe"), path=target.decode()), cut_at=cut_at) == b""
    assert b"Tool not found: wipe" in scene.client.taken()
    got = scene.says(post(LIST, path=target.decode()), cut_at=cut_at)
    assert got.startswith(b"POST /mcp HTTP/1.1\r\nhost: upstream:3000\r\n")
    said = scene.answers(answer(tool_list([tool("read"), tool("wipe")], id="1")))
    assert (b'"read"' in said, b'"wipe"' in said) == (True, False)
    assert scene.says(REQUESTS[0]) == REQUESTS[0]
    assert set(scene.places.asked) == {"/mcp"}


CALL = post(call("wipe"))


@pytest.mark.parametrize("raw", [
    *(CALL.replace(b" HTTP/1.1", version) for version in (b"", b" HTTP/0.9", b" RTSP/1.0")),
    *(CALL.replace(b"Host", field + b"\r\nHost") for field in (
        b"Transfer-Encoding: x", b"Content-Length: 0", b"X: y\rContent-Length: 0",
    )),
    b"P" * 65,
    CALL.replace(b"POST /mcp ", b"POST\x0b/mcp\x0b"),
    CALL.replace(b"\r\n", b"\n"),
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(CALL), CALL),
    b"CONNECT /mcp HTTP/1.1\r\nHost: x\r\n\r\n" + CALL,
    b"SSH-2.0-x\r\n", b"\x16\x03\x09\x00\x05hello",
])  # fmt: skip
def test_bytes_that_two_servers_read_differently_are_not_sent(scene: Scene, raw: bytes) -> None:
    assert scene.says(raw) == b""
    assert not scene.client.is_open
    assert scene.places.closed


@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE"])
@pytest.mark.parametrize("line", [
    b"POST /mcp HTTP/1.1", b"\r\nx /mcp RTSP/1", b"POST /mcp", b"a=b\r\n\r\nPOST /mcp HTTP/1.1",
    b"a=b\n\nPOST \t/mcp",
    b'"a"\nGET / HTTP/1.1\n\nxPOST /mcp http/1',
])  # fmt: skip
@pytest.mark.parametrize("cut_at", [0, 1, 7])
def test_no_body_reads_as_a_request(scene: Scene, method: bytes, line: bytes, cut_at: int) -> None:
    body = CALL.replace(b"POST /mcp HTTP/1.1", line)
    raw = b"%b /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (method, len(body), body)
    assert b"jsonrpc" not in scene.says(raw, cut_at=cut_at)
    assert not scene.client.is_open


@pytest.mark.parametrize("coding", [
    b"Transfer-Encoding: chunked", b"x: y\r\ncontent-encoding:gzip", b"x\rContent_Encoding : gzip",
    b" Content-Encoding:\tgzip",
])  # fmt: skip
@pytest.mark.parametrize("before", [b"a=b\r\n\r\n", b"GET / HTTP/1.1\r\n\r\nx"])
@pytest.mark.parametrize("cut_at", [0, 1, 7])
def test_no_request_in_a_body_hides_its_own_body(
    scene: Scene, before: bytes, coding: bytes, cut_at: int
) -> None:
    """A chunk may end within the word that shows a message."""
    head = b"POST /mcp HTTP/1.1\r\n%b\r\n\r\n" % coding
    body = b"." + before + head + b"1\r\n{\r\n"
    raw = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert b"\r\n\r\n1" not in scene.says(raw, cut_at=cut_at)
    assert not scene.client.is_open


HONEST = b"""Our API:

POST /users HTTP/1.1
Host: x

{"name": "Ann"}

HTTP/1.1 200 OK
Transfer-Encoding: chunked

GET /users
Supports content-encoding, says who called it. Transfer-Encoding, too:
> content-encoding: gzip
"""


@each_row("body", [
    b"We use HTTP/2 for this", b"cd /tmp\nls", b"GET", b"x" * 100, b"a b\nc", b"\n\n", HONEST,
    HONEST.replace(b"\n", b"\r\n"),
    b"tools/call and jsonrpc mean nothing without a request",
    b"--- /dev/null\n+++ b/rpc.py\n@@ -0,0 +1 @@\n+{'jsonrpc': '2.0'}\n",
])  # fmt: skip
def test_text_that_is_no_request_passes(body: bytes) -> None:
    raw = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert Scene().says(raw, cut_at=1) == raw


@pytest.mark.parametrize("cut_at", [0, 1, 3])
def test_mcp_on_the_stream_of_a_get_is_filtered(scene: Scene, cut_at: int) -> None:
    assert scene.says(b"GET /sse HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
    assert scene.answers(SSE_HEAD + chunk(b": hi\n\ndata: other\n")).startswith(SSE_HEAD)
    listed = EVENT % tool_list([tool("read"), tool("wipe")], id="1")
    said = scene.answers(
        chunk(b"\n" + listed) + chunk(EVENT % result()) + LAST_CHUNK, cut_at=cut_at
    )
    assert b'"wipe"' not in said
    assert b'"read"' in said
    assert said.endswith(LAST_CHUNK)
    assert scene.says(REQUESTS[0]) == REQUESTS[0]


def test_the_length_and_digest_of_a_filtered_stream_are_removed(scene: Scene) -> None:
    scene.says(b"GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
    listed = EVENT % tool_list([tool("read"), tool("wipe")], id="1")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nRepr-Digest: a=:b:\r\n"
    said = scene.answers(head + b"Content-Length: %d\r\n\r\n" % len(listed) + listed)
    assert b"content-length" not in said.lower()
    assert b"digest" not in said.lower()
    assert b'"wipe"' not in said
    assert said.endswith(LAST_CHUNK)


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_a_compressed_stream_passes_unless_it_is_mcp(coding: str) -> None:
    make = {"gzip": gzip.compress, "br": brotli.compress}[coding]
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: %b\r\n\r\n" % coding.encode())
    scene = Scene()
    scene.says(b"GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
    raw = head + chunk(make(b"data: hello\n\n" * 99))
    assert scene.answers(raw + LAST_CHUNK, cut_at=9) == raw + LAST_CHUNK
    scene.says(b"GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
    said = scene.answers(head + chunk(make(EVENT % tool_list([tool("wipe")], id="1"))))
    assert said == head
    assert scene.client.was_aborted


def test_an_endpoint_is_known_by_its_answers(scene: Scene) -> None:
    """There, also JSON-RPC is judged whose methods MCP does not define."""
    odd = post(b'{"jsonrpc":"2.0","id":1,"method":"x/tools","params":{"name":"wipe"}}')
    assert scene.says(odd) == odd
    scene.answers(answer(result()))
    scene.says(post(LIST))
    scene.answers(answer(tool_list([tool("read")], id="1")))
    assert scene.places.endpoints == {"/mcp"}
    scene.says(odd)
    assert scene.places.asked == ["/mcp"] * 2


def test_what_is_held_is_counted_and_can_be_given_up(scene: Scene) -> None:
    scene.says(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n{" + b" " * 99_999)
    assert scene.engine.held_bytes > 100_000
    scene.engine.give_up()
    assert scene.engine.held_bytes == 0
    assert not scene.client.is_open


def test_streams_of_a_post_pass_unread(scene: Scene) -> None:
    scene.says(REQUESTS[3])
    raw = SSE_HEAD + chunk(b"data: {") + chunk(b'"text": "x"}\n\n') + LAST_CHUNK
    assert scene.answers(raw, cut_at=1) == raw


def test_a_long_body_is_cut_off_when_it_mentions_a_message() -> None:
    scene = Scene(message_limit="10KB")
    beginning = b'{"a":"' + b"x" * 20_000
    raw = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + beginning
    assert scene.says(raw) == raw
    assert b"jsonrpc" not in scene.says(b'","jsonrpc":"2.0"')
    assert scene.client.was_aborted
    assert not scene.table.link.is_open


def test_fields_for_the_proxy_stay_here(scene: Scene) -> None:
    raw = b"GET http://upstream:3000/a HTTP/1.1\r\nHost: x\r\n%bX: y\r\n\r\n"
    proxys = b"Proxy-Authorization: Basic eA==\r\nproxy-connection: keep-alive\r\n"
    assert scene.says(raw % proxys) == b"GET /a HTTP/1.1\r\nHost: x\r\nX: y\r\n\r\n"


def test_a_request_is_repeated_once_if_its_connection_was_just_closed(scene: Scene) -> None:
    scene.says(REQUESTS[0])
    scene.answers(answer(b"1"))
    scene.says(REQUESTS[0])
    scene.table.link.ends()
    assert len(scene.table.links) == 2
    assert scene.answers(answer(b"2")) == answer(b"2")
    scene.table.link.ends()
    scene.table.refuses = True
    scene.says(REQUESTS[0])
    assert scene.client.got.startswith(b"HTTP/1.1 502 ")


def test_a_client_that_leaves_takes_its_connection_with_it(scene: Scene) -> None:
    scene.says(REQUESTS[3])
    scene.client.leaves()
    assert not scene.table.link.is_open


def test_a_client_that_waits_for_an_answer_of_others_keeps_its_seat() -> None:
    scene = Scene(seats=Seats(1))
    scene.says(REQUESTS[3])
    assert scene.table.asks().got.startswith(b"HTTP/1.1 503 ")
    assert scene.client.is_open
    scene.answers(answer(b"1"))
    scene.table.asks()
    assert not scene.client.is_open


def test_mcp_that_answers_a_request_that_is_refused_is_cut_off(scene: Scene) -> None:
    """The client would wait for ever."""
    scene.says(b"GET /sse?jsonrpc=2.0 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"read" not in scene.answers(SSE_HEAD + chunk(EVENT % tool_list([tool("read")], id="1")))
    assert scene.client.was_aborted
    assert not scene.table.link.is_open
