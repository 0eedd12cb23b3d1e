"""The client asks a real server on loopback, whose every byte the test has chosen."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import ssl
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mcp_tool_filter.adapters.fetch.http_client import HttpClient
from mcp_tool_filter.adapters.fetch.http_failures import HttpFailed, NotConnected
from mcp_tool_filter.adapters.fetch.tls import make_tls_context, refuse_bad_certificate
from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.http.origin import Origin, parse_origin
from tests.raw_upstream import LAST_CHUNK, Peer, Script, answer, chunk, raw_upstream

type Use = Callable[[HttpClient], Awaitable[bytes]]


async def get(client: HttpClient, limit: int = 1000) -> bytes:
    async with client.exchange(b"GET", "/") as response:
        return await response.read(limit)


async def got(script: Script, use: Use = get, tls: ssl.SSLContext | None = None) -> bytes:
    """What a client reads from such an upstream."""

    async with raw_upstream(script) as upstream:
        client = HttpClient(parse_origin(upstream.url), tls=tls)
        try:
            return await use(client)
        finally:
            await client.close()


def saying(*responses: bytes) -> Script:
    """Answer each request of a connection with the next of these, then close it."""

    async def script(peer: Peer) -> None:
        for response in responses:
            await peer.request()
            await peer.say(response)
        peer.close()

    return script


@pytest.mark.parametrize(
    "response",
    [
        answer(b"hello"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk(b"hel")
        + chunk(b"lo")
        + LAST_CHUNK,
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + answer(b"hello"),
        answer(gzip.compress(b"hello"), kind="a/b\r\nContent-Encoding: GZIP"),
        answer(zlib.compress(b"hello"), kind="a/b\r\nContent-Encoding: deflate"),
        answer(b"hello", kind="a/b\r\nContent-Encoding: identity"),
    ],
)
async def test_a_body_is_read_however_it_is_framed(response: bytes) -> None:
    assert await got(saying(response)) == b"hello"


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (answer(b"x" * 1001), "The answer is longer than 1000 bytes"),
        (
            answer(gzip.compress(b"x" * 10_000_000), kind="a/b\r\nContent-Encoding: gzip"),
            "The answer is longer than 1000 bytes",
        ),
        (
            answer(gzip.compress(b"x" * 10_000), kind="a/b\r\nContent-Encoding: gzip"),
            "The compressed answer cannot be read: longer than 1000 bytes when decoded",
        ),
        (
            answer(b"hello", kind="a/b\r\nContent-Encoding: gzip"),
            "The compressed answer cannot be read: not valid gzip",
        ),
        (
            answer(b"hello", kind="a/b\r\nContent-Encoding: rot13"),
            "The compressed answer cannot be read: a content coding that is not accepted",
        ),
        (answer(b"hello")[:-1], "Connection closed by upstream"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "Connection closed by upstream"),
        (b"", "Connection closed by upstream"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "Not a valid HTTP answer: illegal status line"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "Not a valid HTTP answer: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "Not a valid HTTP"),
    ],
)
async def test_an_answer_that_cannot_be_read_has_a_reason(response: bytes, said: str) -> None:
    with pytest.raises(HttpFailed) as caught:
        await got(saying(response))
    assert str(caught.value).startswith(said)
    assert "bytearray" not in str(caught.value)


async def test_a_body_without_an_end_is_left() -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.say(chunk(b"x" * 1_000_000))

    with pytest.raises(HttpFailed, match="longer than 1000 bytes"):
        await got(endless)


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async def twice(client: HttpClient) -> bytes:
        return await get(client) + await get(client)

    assert await got(saying(answer(b"1"), answer(b"2")), twice) == b"12"


@pytest.mark.parametrize(
    "first",
    [
        answer(b"1"),  # closed without a word
        answer(b"1", kind="a/b\r\nConnection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
    ],
)
async def test_where_it_is_not_kept_the_next_request_opens_another(first: bytes) -> None:
    """An upstream that closes an idle connection has not heard the request: it is sent again."""

    async def twice(client: HttpClient) -> bytes:
        before = await get(client)
        await asyncio.sleep(0.01)
        return before + await get(client)

    assert await got(saying(first), twice) == b"11"


async def test_a_request_of_which_the_upstream_has_answered_a_part_is_not_sent_again() -> None:
    async def twice(client: HttpClient) -> bytes:
        await get(client)
        return await get(client)

    with pytest.raises(HttpFailed, match="Connection closed by upstream"):
        await got(saying(answer(b"1"), b"HTTP/1.1 2"), twice)


async def test_a_response_that_is_not_read_costs_its_connection() -> None:
    async def main() -> int:
        async with raw_upstream(saying(answer(b"1"), answer(b"2"))) as upstream:
            client = HttpClient(parse_origin(upstream.url))
            async with client.exchange(b"GET", "/"):
                pass
            await get(client)
            await client.close()
            return len(upstream.peers)

    assert await main() == 2


async def test_an_early_refusal_is_heard_although_the_request_was_cut_off() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(answer(b"no", status="413 Too Large", kind="a/b\r\nConnection: close"))
        peer.close()

    async def post(client: HttpClient) -> bytes:
        async with client.exchange(b"POST", "/", body=b"x" * 50_000) as response:
            return b"%d" % response.status

    assert await got(script, post) == b"413"


async def test_a_connection_that_is_reset_has_a_reason() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    with pytest.raises(HttpFailed, match="Connection reset by upstream"):
        await got(script)


async def test_a_header_that_cannot_be_written_has_a_reason() -> None:
    async def use(client: HttpClient) -> bytes:
        async with client.exchange(b"GET", "/", [(b"x", b"a\r\nb")]) as response:
            return await response.read(1)

    with pytest.raises(HttpFailed, match="cannot be written as HTTP"):
        await got(saying(answer(b"")), use)


class Certified:
    """Certificates made for one test."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", *, expired: bool = False) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
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
            .add_extension(_names(host), critical=False)
        )
        self.pem = folder / "own.pem"
        self.pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def server(self, *, wants_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem)
        if wants_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.pem)
        return context


def _names(host: str) -> x509.SubjectAlternativeName:
    try:
        return x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    except ValueError:
        return x509.SubjectAlternativeName([x509.DNSName(host)])


async def got_by_tls(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    async with raw_upstream(saying(answer(b"1"), answer(b"2")), tls=server) as upstream:
        http = HttpClient(parse_origin(upstream.url), tls=client)
        try:
            return await get(http) + await get(http)
        finally:
            await http.close()


async def test_a_certificate_that_the_user_trusts_will_do(tmp_path: Path) -> None:
    own = Certified(tmp_path)
    assert await got_by_tls(own.server(), make_tls_context(trusted_ca=str(own.pem))) == b"12"


async def test_none_is_needed_where_the_user_says_so(tmp_path: Path) -> None:
    own = Certified(tmp_path, "elsewhere.example", expired=True)
    assert await got_by_tls(own.server(), make_tls_context(insecure=True)) == b"12"


async def test_a_certificate_can_be_shown(tmp_path: Path) -> None:
    own = Certified(tmp_path)
    ours = make_tls_context(trusted_ca=str(own.pem), client_cert=str(own.pem))
    assert await got_by_tls(own.server(wants_certificate=True), ours) == b"12"


@pytest.mark.parametrize(
    ("host", "expired", "trusted", "said"),
    [
        ("127.0.0.1", False, False, "certificate verify failed: self-signed certificate"),
        ("127.0.0.1", True, True, "certificate verify failed: certificate has expired"),
        (
            "elsewhere.example",
            False,
            True,
            "certificate verify failed: IP address mismatch, "
            "certificate is not valid for '127.0.0.1'.",
        ),
    ],
)
async def test_a_certificate_that_will_not_do_has_a_reason(
    tmp_path: Path, host: str, expired: bool, trusted: bool, said: str
) -> None:
    own = Certified(tmp_path, host, expired=expired)
    ours = make_tls_context(trusted_ca=str(own.pem) if trusted else None)
    with pytest.raises(NotConnected) as caught:
        await got_by_tls(own.server(), ours)
    assert str(caught.value) == said


async def test_without_the_certificate_that_is_wanted_there_is_no_answer(tmp_path: Path) -> None:
    own = Certified(tmp_path)
    with pytest.raises(HttpFailed):
        await got_by_tls(
            own.server(wants_certificate=True), make_tls_context(trusted_ca=str(own.pem))
        )


async def test_an_upstream_without_tls_has_a_reason() -> None:
    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.reader.read(10)
            await peer.say(answer(b"", status="400 Bad Request"))

        async with raw_upstream(script) as upstream:
            await get(HttpClient(Origin("127.0.0.1", upstream.port, tls=True)))

    with pytest.raises(NotConnected) as caught:
        await main()
    assert str(caught.value) == "TLS error: wrong version number"


@pytest.mark.parametrize("option", ["trusted_ca", "trusted_confdir", "client_cert"])
def test_a_file_that_is_not_there_is_named(option: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(InvalidOption) as caught:
        make_tls_context(**{option: missing})  # type: ignore[arg-type]  # each takes a path
    assert missing in str(caught.value)


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with pytest.raises(InvalidOption, match=r"empty\.pem'\nIt has no certificate in PEM form"):
        make_tls_context(trusted_ca=str(empty))
    wanted = "It must be a PEM file with a certificate and its key"
    with pytest.raises(InvalidOption, match=wanted):
        make_tls_context(client_cert=str(empty))
    with pytest.raises(InvalidOption, match=wanted):
        refuse_bad_certificate("--cert", str(empty))
    with pytest.raises(InvalidOption, match="Is a directory"):
        refuse_bad_certificate("--cert", str(tmp_path))


def test_a_key_must_belong_to_its_certificate(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    good, bad = Certified(own).pem, Certified(other).pem
    refuse_bad_certificate("--cert", str(good))
    begin = "-----BEGIN CERTIFICATE-----"
    [key, *_] = (part for part in bad.read_text().split(begin) if "PRIVATE KEY" in part)
    certificate = begin + good.read_text().split(begin)[1].partition("-----BEGIN")[0]
    bad.write_text(certificate + key[key.index("-----BEGIN") :])
    with pytest.raises(InvalidOption, match="Its key does not belong to its certificate"):
        refuse_bad_certificate("--cert", str(bad))
