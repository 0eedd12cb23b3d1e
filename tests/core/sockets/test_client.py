"""Our HTTP client asks a real server on loopback, whose every byte the test has chosen.

How it reads answers; which certificates it accepts, shows and asks for; how failures are described.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import gzip
import ipaddress
import socket
import ssl
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from mcp_tool_filter.cli.commands.http import refuse_bad_pem
from mcp_tool_filter.core.errors import InvalidOption, StartError
from mcp_tool_filter.core.http.urls import Origin, parse_origin
from mcp_tool_filter.core.sockets import connect
from mcp_tool_filter.core.sockets.client import HttpClient
from mcp_tool_filter.core.sockets.connect import HttpFailed, NotConnected, ProxyHop, Reach, why
from mcp_tool_filter.core.sockets.connect import make_tls_context as tls_context
from tests.core.upstream.fetching import get, got, saying
from tests.proxy import certified
from tests.raw_client import trusting
from tests.raw_upstream import (
    LAST_CHUNK,
    TIMEOUT,
    Peer,
    always,
    answer,
    chunk,
    free_port,
    raw_upstream,
)  # fmt: skip
from tests.rows import each_row

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EARLY = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
TOO_LONG, CLOSED = "The answer is longer than 1000 bytes", "Connection closed by upstream"
UNREADABLE = "The compressed answer cannot be read: "


def coded(coding: str, body: bytes) -> bytes:
    return answer(body, kind=f"a/b\r\nContent-Encoding: {coding}")


@each_row("response", [
    answer(b"hello"),
    CHUNKED + chunk(b"hel") + chunk(b"lo") + LAST_CHUNK,
    b"HTTP/1.1 200 OK\r\n\r\nhello", b"HTTP/1.0 200 OK\r\n\r\nhello",
    b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    EARLY + answer(b"hello"), coded("GZIP", gzip.compress(b"hello")),
    coded("deflate", zlib.compress(b"hello")), coded("identity", b"hello"),
])  # fmt: skip
async def test_a_body_is_read_however_it_is_framed(response: bytes) -> None:
    assert await got(saying(response)) == b"hello"


@each_row(("response", "said"), [
    (answer(b"x" * 1001), TOO_LONG),
    (coded("gzip", gzip.compress(b"x" * 10_000_000)), TOO_LONG),
    (coded("gzip", gzip.compress(b"x" * 10_000)), f"{UNREADABLE}longer than 1000 bytes when"),
    (coded("gzip", b"hello"), f"{UNREADABLE}not valid gzip"),
    (coded("rot13", b"hello"), f"{UNREADABLE}a content coding that is not accepted"),
    (answer(b"hello")[:-1], CLOSED), (b"HTTP/1.1 200 OK\r\nContent-Le", CLOSED), (b"", CLOSED),
    (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "Not a valid HTTP answer: not a status line"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "Not a valid HTTP answer: "),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "Not a valid HTTP"),
])  # fmt: skip
async def test_an_answer_that_cannot_be_read_has_a_reason(response: bytes, said: str) -> None:
    with pytest.raises(HttpFailed) as caught:
        await got(saying(response))
    assert str(caught.value).startswith(said)
    assert "bytearray" not in str(caught.value)


async def test_a_body_may_be_as_long_as_the_limit() -> None:
    assert await got(saying(answer(b"x" * 1000))) == b"x" * 1000


async def test_an_endless_body_is_refused() -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED)
        while True:
            await peer.say(chunk(b"x" * 1_000_000))

    with pytest.raises(HttpFailed, match="longer than 1000 bytes"):
        await got(endless)


async def twice(client: HttpClient) -> bytes:
    before = await get(client)
    await asyncio.sleep(0.01)
    return before + await get(client)


async def test_a_connection_is_kept_for_the_next_request() -> None:
    assert await got(saying(answer(b"1"), answer(b"2")), twice) == b"12"


@pytest.mark.parametrize("first", [
    answer(b"1"),  # closed without a word
    answer(b"1", kind="a/b\r\nConnection: close"),
    b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
])  # fmt: skip
async def test_a_closed_connection_is_replaced_for_the_next_request(first: bytes) -> None:
    """An upstream that closes an idle connection has not heard the request: it is sent again."""
    assert await got(saying(first), twice) == b"11"


async def test_a_request_is_not_sent_again_if_its_sender_says_so() -> None:
    """The upstream may have heard it, although it closed the connection without an answer."""

    async def once(client: HttpClient) -> bytes:
        client.resends = False
        return await twice(client)

    assert await got(saying(answer(b"1"), b""), twice) == b"11"
    with pytest.raises(HttpFailed, match="Connection closed by upstream"):
        await got(saying(answer(b"1"), b""), once)


async def test_a_request_with_a_partial_answer_is_not_sent_again() -> None:
    with pytest.raises(HttpFailed, match="Connection closed by upstream"):
        await got(saying(answer(b"1"), b"HTTP/1.1 2"), twice)


async def test_an_unread_response_costs_its_connection() -> None:
    async def use(client: HttpClient) -> bytes:
        async with client.exchange(b"GET", "/"):
            pass
        return await get(client)

    assert await got(saying(answer(b"1"), answer(b"2")), use) == b"1"  # of another connection


async def test_a_header_that_cannot_be_written_has_a_reason() -> None:
    async def use(client: HttpClient) -> bytes:
        async with client.exchange(b"GET", "/", [(b"x", b"a\r\nb")]) as response:
            return await response.read(1)

    with pytest.raises(HttpFailed, match="cannot be written as HTTP"):
        await got(saying(answer(b"")), use)


async def test_an_early_refusal_is_read_although_the_request_was_not_sent_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(answer(b"no", status="413 Too Large", kind="a/b\r\nConnection: close"))
        peer.close()

    async def post(client: HttpClient) -> bytes:
        async with client.exchange(b"POST", "/", body=b"x" * 50_000) as response:
            return b"%d" % response.status

    assert await got(script, post) == b"413"


async def test_a_reset_connection_has_a_reason() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    with pytest.raises(HttpFailed, match="Connection reset by upstream"):
        await got(script)


async def test_a_server_may_be_elsewhere_than_its_name_leads() -> None:
    async with (
        raw_upstream(always(answer(b"hello"))) as there,
        raw_upstream(always(answer(b""))) as behind,
    ):
        at = Origin("a.invalid", there.port, False, "127.0.0.1")
        client = HttpClient(at)
        assert await get(client) == b"hello"
        await client.close()
        assert there.requests[0].all("host") == [f"a.invalid:{there.port}"]
        client = HttpClient(at, via=ProxyHop(parse_origin(behind.url), None, None))
        await get(client)
        await client.close()
    assert behind.requests[0].line == f"GET {there.url}/ HTTP/1.1"


async def get_by(via: ProxyHop, *, is_tls: bool) -> bytes:
    client = HttpClient(Origin("a.example", 443 if is_tls else 80, is_tls), tls=trusting(), via=via)
    try:
        return await get(client)
    finally:
        await client.close()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_requests_go_over_a_proxy(is_tls: bool, tmp_path: Path) -> None:
    """Plain HTTP as a URL, TLS through a tunnel, also if the way to the proxy is TLS."""
    tls = certified(tmp_path)
    asked: list[bytes] = []

    async def script(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if head.startswith(b"CONNECT"):
            await peer.say(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
            await peer.writer.start_tls(tls)
            asked.append(await peer.reader.readuntil(b"\r\n\r\n"))
        await peer.say(answer(b"hello"))

    async with raw_upstream(script, tls=tls) as behind:
        via = ProxyHop(parse_origin(behind.url), trusting(), b"Basic dTpw")
        assert await get_by(via, is_tls=is_tls) == b"hello"
    head, *in_tunnel = asked
    assert [one.startswith(b"GET / ") for one in in_tunnel] == [True] * is_tls
    assert head.startswith(b"CONNECT a.example:443 " if is_tls else b"GET http://a.example/ ")
    assert b"\r\nproxy-authorization: Basic dTpw\r\n" in head


@pytest.mark.parametrize(("said", "why"), [
    (b"HTTP/1.1 407 Login\r\n\r\n", "the proxy opens no tunnel: HTTP/1.1 407 Login"),
    (b"SSH-2.0\r\n\r\n", "the proxy opens no tunnel: SSH-2.0"),
    (b"x" * 100_000, "the proxy opens no tunnel"),
    (b"", "the proxy opens no tunnel"),
])  # fmt: skip
async def test_a_proxy_without_a_tunnel_has_a_reason(said: bytes, why: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(said)
        peer.close()

    async with raw_upstream(script) as behind:
        with pytest.raises(NotConnected, match=why):
            await get_by(ProxyHop(parse_origin(behind.url), None, None), is_tls=True)


# Failures and certificates

ORIGIN = parse_origin("http://upstream.example:3000")


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] long words")
    error.verify_message = "self-signed certificate"
    return error


def tls_error() -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] long words (_ssl.c:1000)")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@each_row(("error", "said"), [
    (certificate_error(), "certificate verify failed: self-signed certificate"),
    (tls_error(), "TLS error: wrong version number"),
    (socket.gaierror(-2, "Name or service not known"), "Host not found: upstream.example"),
    (ConnectionRefusedError(111, "x"), "Connection refused"),
    (ConnectionResetError(104, "x"), "Connection reset by upstream"),
    (BrokenPipeError(32, "x"), "Connection reset by upstream"),
    (OSError(101, "Network is unreachable"), "Network is unreachable"),
    (OSError(), "OSError"),
])  # fmt: skip
def test_a_failure_is_described_in_a_few_words(error: Exception, said: str) -> None:
    assert why(error, ORIGIN) == said


def test_the_most_telling_error_of_several_addresses_is_shown() -> None:
    errors = [OSError(101, "Network is unreachable"), ConnectionRefusedError(), OSError(1, "x")]
    assert connect.why_none(errors, ORIGIN) == "Connection refused"
    assert connect.why_none([*errors, tls_error()], ORIGIN) == "TLS error: wrong version number"


def test_a_missing_login_says_what_to_type() -> None:
    assert (
        str(connect.LoginNeeded(StartError("Not logged in", why="Type: x")))
        == "Not logged in. Type: x"
    )


async def test_an_upstream_that_listens_is_reachable() -> None:
    """One that never shakes hands is lost."""

    async def found(port: int, *, tls: bool = False, patience: float = 5.0) -> Reach:
        origin = Origin("127.0.0.1", port, tls)
        return await connect.probe(origin, tls_context() if tls else None, patience)

    async with raw_upstream(Peer.left) as upstream:
        assert await found(upstream.port) is Reach.REACHED
        assert await found(upstream.port, tls=True, patience=0.05) is Reach.LOST
    assert await found(free_port()) is Reach.LOST


@each_row(("errors", "reach"), [
    ([OSError(errno.EMFILE, "")], Reach.UNKNOWN),
    ([OSError(errno.ENFILE, ""), OSError(errno.ENETUNREACH, "")], Reach.UNKNOWN),
    ([OSError(errno.EHOSTUNREACH, "")], Reach.DOUBTFUL),
    ([ConnectionResetError(errno.ECONNRESET, "")], Reach.DOUBTFUL),
    ([socket.gaierror(socket.EAI_AGAIN, "")], Reach.DOUBTFUL),
    ([TimeoutError()], Reach.LOST),
    ([OSError(errno.ENETUNREACH, ""), OSError(errno.ECONNREFUSED, "")], Reach.LOST),
])  # fmt: skip
def test_our_own_errors_say_nothing_of_the_upstream(errors: list[Exception], reach: Reach) -> None:
    assert connect.reach_in(errors) is reach


LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
ELSEWHERE = x509.DNSName("elsewhere.example")
OTHER_NAME = "IP address mismatch, certificate"


class Certified:
    """Certificates made for one test."""

    def __init__(
        self, folder: Path, host: x509.GeneralName = LOOPBACK, *, expired: bool = False
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "upstream")])
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * day)
            .not_valid_after(now - day if expired else now + day)
            .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        )
        self.pem = folder / "own.pem"
        own = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.pem.write_bytes(own + builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def server(self, *, wants_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem)
        if wants_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.pem)
        return context


async def got_by_tls(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    return await got(saying(answer(b"1"), answer(b"2")), twice, client, server)


async def test_a_certificate_that_the_user_trusts_is_accepted(tmp_path: Path) -> None:
    own = Certified(tmp_path)
    assert await got_by_tls(own.server(), tls_context(trusted_ca=str(own.pem))) == b"12"


async def test_certificate_checks_can_be_switched_off(tmp_path: Path) -> None:
    own = Certified(tmp_path, ELSEWHERE, expired=True)
    assert await got_by_tls(own.server(), tls_context(insecure=True)) == b"12"


async def test_a_client_certificate_can_be_sent_and_may_be_needed(tmp_path: Path) -> None:
    own, pem = Certified(tmp_path), str(tmp_path / "own.pem")
    ours = tls_context(trusted_ca=pem, client_cert=pem)
    assert await got_by_tls(own.server(wants_certificate=True), ours) == b"12"
    with pytest.raises(HttpFailed):
        await got_by_tls(own.server(wants_certificate=True), tls_context(trusted_ca=pem))


@pytest.mark.parametrize(("host", "expired", "trusted", "said"), [
    (LOOPBACK, False, False, "self-signed certificate"),
    (LOOPBACK, True, True, "certificate has expired"),
    (ELSEWHERE, False, True, f"{OTHER_NAME} is not valid for '127.0.0.1'."),
])  # fmt: skip
async def test_a_refused_certificate_has_a_reason(
    tmp_path: Path, host: x509.GeneralName, expired: bool, trusted: bool, said: str
) -> None:
    own = Certified(tmp_path, host, expired=expired)
    ours = tls_context(trusted_ca=str(own.pem) if trusted else None)
    with pytest.raises(NotConnected) as caught:
        await got_by_tls(own.server(), ours)
    assert str(caught.value) == f"certificate verify failed: {said}"


async def test_an_upstream_without_tls_has_a_reason() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(10)
        await peer.say(answer(b"", status="400 Bad Request"))

    async with raw_upstream(script) as upstream:
        http = HttpClient(Origin("127.0.0.1", upstream.port, tls=True))
        with pytest.raises(NotConnected) as caught:
            await get(http)
    assert str(caught.value) == "TLS error: wrong version number"


@pytest.mark.parametrize("option", ["trusted_ca", "trusted_confdir", "client_cert"])
def test_a_missing_file_is_named(option: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(InvalidOption) as caught:
        tls_context(**{option: missing})  # type: ignore[arg-type]  # each takes a path
    assert missing in str(caught.value)


NO_KEY = "It must be a PEM file with a certificate and its key"


check_cert = partial(refuse_bad_pem, "--cert")


@pytest.mark.parametrize(("check", "name", "said"), [
    (lambda ca: tls_context(trusted_ca=ca), "empty.pem", r"empty\.pem'\nIt has no certificate"),
    (lambda cert: tls_context(client_cert=cert), "empty.pem", NO_KEY),
    (check_cert, "empty.pem", NO_KEY), (check_cert, "", "It is not a regular file"),
])  # fmt: skip
def test_a_file_without_a_certificate_is_named(
    check: Callable[[str], object], name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(InvalidOption, match=said):
        check(str(tmp_path / name))


def test_a_key_must_belong_to_its_certificate(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    good, bad = Certified(own).pem, Certified(other).pem
    check_cert(str(good))
    begin = "-----BEGIN CERTIFICATE-----"
    [key, *_] = (part for part in bad.read_text().split(begin) if "PRIVATE KEY" in part)
    certificate = begin + good.read_text().split(begin)[1].partition("-----BEGIN")[0]
    bad.write_text(certificate + key[key.index("-----BEGIN") :])
    with pytest.raises(InvalidOption, match="The key does not belong to the certificate"):
        check_cert(str(bad))


async def test_a_name_found_slowly_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the calls of one server would stop those of all servers that have names."""
    may_answer, asked, find = Event(), list[str](), socket.getaddrinfo

    def find_slowly(host: str, *how: Any, **more: Any) -> Any:
        asked.append(host)
        if host == "slow.example":
            may_answer.wait(TIMEOUT)
        return find("127.0.0.1", *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", find_slowly)
    async with raw_upstream(saying(answer(b""))) as upstream:
        origin = parse_origin(upstream.url)

        async def reach(host: str) -> Reach:
            return await connect.probe(replace(origin, host=host), None, TIMEOUT)

        slow = asyncio.gather(*(reach("slow.example") for _ in range(50)))
        while not asked:
            await asyncio.sleep(0.01)
        assert await reach("fast.example") is Reach.REACHED
        assert not slow.done()
        may_answer.set()
        assert set(await slow) == {Reach.REACHED}
    assert asked == ["slow.example", "fast.example"]
