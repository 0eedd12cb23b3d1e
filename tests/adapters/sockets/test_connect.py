"""Which certificates our connections accept, show and ask for; what people are told of failures."""

from __future__ import annotations

import datetime
import errno
import ipaddress
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import (
    HttpFailed,
    LoginNeeded,
    NotConnected,
    Reach,
    make_tls_context,
    probe,
    reach_in,
    refuse_bad_certificate,
    why,
    why_none,
)
from mcp_tool_filter.errors import InvalidOption, StartError
from mcp_tool_filter.http.urls import Origin, parse_origin
from tests.adapters.upstream.fetching import get, saying
from tests.raw_upstream import Peer, answer, free_port, raw_upstream

ORIGIN = parse_origin("http://upstream.example:3000")


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] long words")
    error.verify_message = "self-signed certificate"
    return error


def tls_error() -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] long words (_ssl.c:1000)")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (certificate_error(), "certificate verify failed: self-signed certificate"),
        (tls_error(), "TLS error: wrong version number"),
        (socket.gaierror(-2, "Name or service not known"), "Host not found: upstream.example"),
        (ConnectionRefusedError(111, "x"), "Connection refused"),
        (ConnectionResetError(104, "x"), "Connection reset by upstream"),
        (BrokenPipeError(32, "x"), "Connection reset by upstream"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (OSError(), "OSError"),
    ],
)
def test_a_failure_is_described_in_a_few_words(error: Exception, said: str) -> None:
    assert why(error, ORIGIN) == said


def test_the_most_telling_error_of_several_addresses_is_shown() -> None:
    errors = [OSError(101, "Network is unreachable"), ConnectionRefusedError(), OSError(1, "x")]
    assert why_none(errors, ORIGIN) == "Connection refused"
    assert why_none([*errors, tls_error()], ORIGIN) == "TLS error: wrong version number"


def test_a_missing_login_says_what_to_type() -> None:
    assert str(LoginNeeded(StartError("Not logged in", why="Type: x"))) == "Not logged in. Type: x"


async def test_an_upstream_that_listens_is_reachable() -> None:
    async with raw_upstream(Peer.left) as upstream:
        there = await probe(Origin("127.0.0.1", upstream.port, tls=False), None, 5.0)
    found = [there, await probe(Origin("127.0.0.1", free_port(), tls=False), None, 5.0)]
    assert found == [Reach.REACHED, Reach.LOST]


async def test_a_listener_that_never_shakes_hands_is_lost() -> None:
    async with raw_upstream(Peer.left) as upstream:
        origin = Origin("127.0.0.1", upstream.port, tls=True)
        found = await probe(origin, make_tls_context(), timeout=0.05)
    assert found is Reach.LOST


@pytest.mark.parametrize(
    ("errors", "reach"),
    [
        ([OSError(errno.EMFILE, "")], Reach.UNKNOWN),
        ([OSError(errno.ENFILE, ""), OSError(errno.ENETUNREACH, "")], Reach.UNKNOWN),
        ([OSError(errno.EHOSTUNREACH, "")], Reach.DOUBTFUL),
        ([ConnectionResetError(errno.ECONNRESET, "")], Reach.DOUBTFUL),
        ([socket.gaierror(socket.EAI_AGAIN, "")], Reach.DOUBTFUL),
        ([TimeoutError()], Reach.LOST),
        ([OSError(errno.ENETUNREACH, ""), OSError(errno.ECONNREFUSED, "")], Reach.LOST),
    ],
)
def test_errors_of_this_machine_say_nothing_about_the_upstream(
    errors: list[Exception], reach: Reach
) -> None:
    assert reach_in(errors) is reach


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


async def got_by_tls(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    async with raw_upstream(saying(answer(b"1"), answer(b"2")), tls=server) as upstream:
        http = HttpClient(parse_origin(upstream.url), tls=client)
        try:
            return await get(http) + await get(http)
        finally:
            await http.close()


async def test_a_certificate_that_the_user_trusts_is_accepted(tmp_path: Path) -> None:
    own = Certified(tmp_path)
    assert await got_by_tls(own.server(), make_tls_context(trusted_ca=str(own.pem))) == b"12"


async def test_certificate_checks_can_be_switched_off(tmp_path: Path) -> None:
    own = Certified(tmp_path, ELSEWHERE, expired=True)
    assert await got_by_tls(own.server(), make_tls_context(insecure=True)) == b"12"


async def test_a_client_certificate_can_be_sent(tmp_path: Path) -> None:
    own = Certified(tmp_path)
    ours = make_tls_context(trusted_ca=str(own.pem), client_cert=str(own.pem))
    assert await got_by_tls(own.server(wants_certificate=True), ours) == b"12"


@pytest.mark.parametrize(
    ("host", "expired", "trusted", "said"),
    [
        (LOOPBACK, False, False, "self-signed certificate"),
        (LOOPBACK, True, True, "certificate has expired"),
        (ELSEWHERE, False, True, f"{OTHER_NAME} is not valid for '127.0.0.1'."),
    ],
)
async def test_a_refused_certificate_has_a_reason(
    tmp_path: Path, host: x509.GeneralName, expired: bool, trusted: bool, said: str
) -> None:
    own = Certified(tmp_path, host, expired=expired)
    ours = make_tls_context(trusted_ca=str(own.pem) if trusted else None)
    with pytest.raises(NotConnected) as caught:
        await got_by_tls(own.server(), ours)
    assert str(caught.value) == f"certificate verify failed: {said}"


async def test_an_upstream_that_wants_a_client_certificate_answers_nothing_without_it(
    tmp_path: Path,
) -> None:
    own = Certified(tmp_path)
    with pytest.raises(HttpFailed):
        await got_by_tls(
            own.server(wants_certificate=True), make_tls_context(trusted_ca=str(own.pem))
        )


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
        make_tls_context(**{option: missing})  # type: ignore[arg-type]  # each takes a path
    assert missing in str(caught.value)


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
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
    with pytest.raises(InvalidOption, match="The key does not belong to the certificate"):
        refuse_bad_certificate("--cert", str(bad))
