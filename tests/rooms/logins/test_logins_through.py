"""The requests of a login, as the authorization server gets them, and the way back."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.core.policy.config import AllowedHosts
from mcp_tool_filter.rooms.logins import logins_through
from mcp_tool_filter.rooms.logins.logins_through import Between, RefusedUri, Registrations, Sides
from mcp_tool_filter.rooms.logins.metadata import ServerMetadata
from mcp_tool_filter.rooms.serve.mount import Mount
from tests.rows import each_row

OURS, THEIRS = "http://localhost:6273", "https://mcp.example"
CLIENT = "http://127.0.0.1:49152/callback"
SIDES = Sides(OURS, UpstreamNames(THEIRS))


SERVER = ServerMetadata(
    issuer="https://as.example/", authorization_endpoint="https://as.example/go",
    token_endpoint="https://as.example/t", registration_endpoint="https://as.example/r",
    sends_issuer=True,
)  # fmt: skip


class Login:
    """A login through us, step by step."""

    def __init__(
        self,
        server: ServerMetadata = SERVER,
        hosts: frozenset[str] = frozenset(),
        known: Registrations | None = None,
    ) -> None:
        self.between = Between(SIDES, THEIRS, server, known or Registrations(), AllowedHosts(hosts))

    def register(self, *uris: str, name: str = "me") -> str:
        """Register a client; the redirect URI that the authorization server knows."""
        asked = json.dumps({"redirect_uris": list(uris or (CLIENT,))}).encode()
        sent, registration = self.between.registration_request(asked)
        answer = json.dumps({**json.loads(sent), "client_id": name}).encode()
        said = json.loads(self.between.registration_answer(answer, registration))
        assert said["redirect_uris"] == list(uris or (CLIENT,))
        (callback,) = json.loads(sent)["redirect_uris"]
        return str(callback)

    def begin(self, now: float = 0, **asked: str) -> dict[str, str]:
        """Visit /authorize; what the authorization server is asked."""
        usual = {"client_id": "me", "redirect_uri": CLIENT, "state": "mine"}
        url = self.between.authorize(urlencode(usual | asked), now)
        return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    def end(self, callback: str, now: float = 1, **said: str) -> str:
        """Come back from the login; where the browser is sent."""
        usual = {"code": "secret", "iss": "https://as.example/"}
        path = urlsplit(callback).path
        return self.between.come_back(path, urlencode(usual | said), now)[0]


@pytest.fixture
def login() -> Login:
    return Login()


def test_a_login_comes_back_through_us(login: Login) -> None:
    callback = login.register()
    assert callback.startswith(OURS + "/mcp-tool-filter/callback/")
    begun = login.begin(resource=OURS + "/mcp", code_challenge="c")
    assert begun["redirect_uri"] == callback
    assert begun["resource"] == THEIRS + "/mcp"
    assert begun["code_challenge"] == "c"
    assert begun["state"] != "mine"
    assert login.end(callback, state=begun["state"]) == (
        f"{CLIENT}?code=secret&state=mine&iss=http%3A%2F%2Flocalhost%3A6273%2F"
    )
    body = urlencode({"client_id": "me", "redirect_uri": CLIENT, "resource": OURS + "/mcp"})
    fields = dict(login.between.token_request(body.encode(), None))
    assert fields == {"client_id": "me", "redirect_uri": callback, "resource": THEIRS + "/mcp"}


def test_a_client_that_begins_many_logins_ends_only_its_own(login: Login) -> None:
    callback, many = login.register(), login.register(name="many")
    first = login.begin()
    for _ in range(1100):
        last = login.begin(client_id="many")
    assert "code=secret" in login.end(callback, state=first["state"])
    assert "code=secret" in login.end(many, state=last["state"])


def test_an_error_comes_back_as_well(login: Login) -> None:
    callback, begun = login.register(), login.begin()
    there = login.end(callback, state=begun["state"], code="", error="access_denied")
    assert "error=access_denied" in there


def test_only_registered_redirect_uris_are_used(login: Login) -> None:
    login.register()
    for uri in ("http://127.0.0.1:1/other", "https://evil.example/", CLIENT + "/x", "", "http://["):
        with pytest.raises(ProtocolError):
            login.begin(redirect_uri=uri)


def test_the_port_of_a_loopback_redirect_uri_may_differ(login: Login) -> None:
    callback = login.register("http://127.0.0.1/callback")
    begun = login.begin(redirect_uri="http://127.0.0.1:7777/callback")
    assert login.end(callback, state=begun["state"]).startswith("http://127.0.0.1:7777/callback?")


def test_a_state_is_valid_once_for_its_registration_and_for_a_limited_time(login: Login) -> None:
    mine, other = login.register(), login.register(name="other")
    begun = login.begin()
    for callback, said in ((other, begun["state"]), (mine, "guess"), (mine, "")):
        with pytest.raises(ProtocolError):
            login.end(callback, state=said)
    login.end(mine, state=begun["state"])
    with pytest.raises(ProtocolError):
        login.end(mine, state=begun["state"])
    begun = login.begin()
    with pytest.raises(ProtocolError):
        login.end(mine, now=3600, state=begun["state"])


@pytest.mark.parametrize("iss", ["https://evil.example/", "https://as.example", OURS + "/", ""])
def test_another_issuer_is_refused(login: Login, iss: str) -> None:
    callback = login.register()
    with pytest.raises(ProtocolError, match="another"):
        login.end(callback, state=login.begin()["state"], iss=iss)


def test_clients_registered_elsewhere_are_left_to_the_server() -> None:
    """Then the authorization server redirects or refuses, not we."""
    begun = Login().begin(client_id="stranger", redirect_uri="https://evil.example/")
    assert (begun["redirect_uri"], begun["state"]) == ("https://evil.example/", "mine")


def test_without_iss_the_callback_is_the_clients_own() -> None:
    there = "https://as.example/go?tenant=1"
    login = Login(replace(SERVER, sends_issuer=False, authorization_endpoint=there))
    asked = json.dumps({"redirect_uris": ["https://web.example/cb"]}).encode()
    assert login.between.registration_request(asked) == (asked, None)
    url = login.between.authorize("client_id=me&state=s&redirect_uri=x", 0)
    assert url == f"{there}&client_id=me&state=s&redirect_uri=x"


@each_row("uri", [
    "https://evil.example/cb", "http://evil.example/cb", "javascript:alert(1)", "data:,x",
    "http://127.0.0.1@evil.example/", "http://127.0.0.1\\@evil.example/", "//evil.example",
    "http://127.0.0.1:1/#x", "http://127.0.0.1:1/a b", "https:evil.example", "/relative", "",
    "http:///evil.example", "http://127.0.0.1:99999/", "JavaScript:x", "x" * 5000,
    "http://localhost.evil.example/", "http://127.0.0.1:1/\r\nSet-Cookie:a=b",
])  # fmt: skip
def test_redirect_uris_that_we_would_refuse_are_not_registered(uri: str) -> None:
    asked = json.dumps({"redirect_uris": [CLIENT, uri]}).encode()
    with pytest.raises(RefusedUri):
        Login().between.registration_request(asked)


@each_row(("uris", "hosts", "may"), [
    (None, "x", False), ([], "x", False), ("http://127.0.0.1/", "x", False), ([1], "x", False),
    ({}, "x", False), ([CLIENT] * 100, "x", False),
    (["https://tools.example/cb", "vscode://x/y"], "tools.example", True),
    (["https://evil.example/cb"], "*", False),
])  # fmt: skip
def test_clients_are_only_sent_to_a_few_allowed_uris(uris: object, hosts: str, may: bool) -> None:
    sent_to = logins_through.may_be_sent_to(uris, AllowedHosts(frozenset({hosts})))
    assert (sent_to is not None) is may


@pytest.mark.parametrize("twice", ["redirect_uri=a&redirect_uri=b", "state=a&state=b", "x=%ff"])
def test_parameters_that_could_be_read_in_two_ways_are_refused(twice: str) -> None:
    with pytest.raises(ProtocolError):
        Login().between.authorize("client_id=me&" + twice, 0)
    with pytest.raises(ProtocolError):
        Login().between.token_request(b"client_id=me&" + twice.encode(), None)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"1"])
def test_a_registration_is_an_object_and_parameters_are_few(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        Login().between.registration_request(body)
    with pytest.raises(ProtocolError):
        Login().between.token_request(b"a=b&" * 1000, None)


def test_a_client_may_authenticate_in_a_header(login: Login) -> None:
    callback = login.register(name="a b")
    basic = base64.b64encode(b"a%20b:secret").decode()
    fields = login.between.token_request(urlencode({"redirect_uri": CLIENT}).encode(), basic)
    assert fields == [("redirect_uri", callback)]


@each_row(("resource", "theirs"), [
    (OURS + "/mcp", THEIRS + "/mcp"),
    (OURS + "/mcp/", THEIRS + "/mcp/"),
    (OURS, THEIRS), (OURS + "/", THEIRS + "/"),
    (OURS + "/mcp?a=b", THEIRS + "/mcp?a=b"),
    ("HTTP://LOCALHOST:6273/mcp", THEIRS + "/mcp"),
    (OURS + ".evil/mcp", OURS + ".evil/mcp"),
    ("https://elsewhere/mcp", "https://elsewhere/mcp"),
    ("nonsense", "nonsense"),
])  # fmt: skip
def test_our_resource_is_translated_to_the_upstreams(resource: str, theirs: str) -> None:
    assert SIDES.translated([("resource", resource)], THEIRS) == [("resource", theirs)]


def test_both_memories_are_bounded(login: Login) -> None:
    first = login.register(name="client-0")
    begun = login.begin(client_id="client-0")
    for number in range(1, 1500):
        login.register(name=f"client-{number}")
        login.begin(client_id=f"client-{number}")
    assert login.between.registrations.of("client-0") is None
    assert login.between.registrations.of("client-1499")
    with pytest.raises(ProtocolError):
        login.end(first, state=begun["state"])


def test_many_registrations_do_not_evict_clients_that_have_logged_in(login: Login) -> None:
    callback = login.register()
    login.end(callback, state=login.begin()["state"])
    for number in range(1100):
        login.register(name=f"other-{number}")
    assert login.begin()["redirect_uri"] == callback
    assert login.between.registrations.of("other-1") is None
    assert login.between.registrations.of("other-1099") is not None


def test_registrations_are_bounded_in_bytes(login: Login) -> None:
    """A client that registers again takes no more room."""
    login.register(name="stays")
    uris = [f"http://127.0.0.1/{number}/{'x' * 2000}" for number in range(10)]
    for _ in range(200):
        login.register(*uris, name="again")
    assert login.between.registrations.of("stays") is not None
    for number in range(200):
        login.register(*uris, name=f"other-{number}")
    assert len(login.between.registrations.render()) < 1_200_000
    assert login.between.registrations.of("other-199") is not None


def test_hosts_that_are_no_longer_allowed_are_not_redirected_to() -> None:
    page, registrations = "https://pages.example/cb", Registrations()
    login = Login(hosts=frozenset({"pages.example"}), known=registrations)
    login.register(page)
    assert login.begin(redirect_uri=page)
    with pytest.raises(RefusedUri):
        Login(known=registrations).begin(redirect_uri=page)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"version":2}', b'{"version":1,"registrations":{"a":1}}']
)
def test_invalid_stored_registrations_are_ignored(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"version|written|Expecting"):
        Registrations().learn(text)


@pytest.mark.parametrize(("text", "changed"), [
    (f"a=1&resource={OURS}/mcp", "a=1&resource=https%3A%2F%2Fmcp.example%2Fmcp"),
    ("a=1&resource=https://other.example/mcp", None), ("a=1", None), ("%ff", None),
    ("a=1&a=2&resource=" + OURS, None),  # for the upstream to refuse
])  # fmt: skip
def test_only_a_resource_of_ours_is_translated(text: str, changed: str | None) -> None:
    assert SIDES.translated_text(text, THEIRS) == changed


def test_clients_that_are_given_the_same_id_do_not_end_each_others_logins(login: Login) -> None:
    login.register(CLIENT)
    second = login.register("cursor://callback")
    assert login.begin()["redirect_uri"] == second
    assert login.begin(redirect_uri="cursor://callback")["redirect_uri"] == second
    with pytest.raises(ProtocolError):
        login.begin(redirect_uri="http://127.0.0.1/other")
    for number in range(50):
        login.register(f"http://127.0.0.1/{number}")
    registration = login.between.registrations.of("me")
    assert registration
    assert len(registration.redirect_uris) == 20


def test_an_endpoint_at_the_root_of_its_host_is_below_the_name_of_its_server() -> None:
    """The address of the server alone belongs to nobody."""
    names, ours = UpstreamNames("https://mcp.example"), "http://localhost:1/files"
    for url in ("https://mcp.example", "https://mcp.example/"):
        named = Sides(ours, names, Mount("/files", "/")).our_url(url)
        assert named == "http://localhost:1/files/mcp"
    assert Sides(ours, names, Mount("/files", "/mcp")).our_url("https://mcp.example") == ours
