"""Translate the requests of a login on their way to the authorization server and back.

A client names us, but the authorization server knows the upstream:

>>> their_resource("http://localhost:6273/mcp", "http://localhost:6273", "https://mcp.example")
'https://mcp.example/mcp'
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from mcp_tool_filter.errors import InvalidOption, ProtocolError
from mcp_tool_filter.http.login_metadata import ServerMetadata
from mcp_tool_filter.http.login_through.documents import our_issuer
from mcp_tool_filter.http.login_through.registrations import (
    ClientRegistration,
    Registrations,
    UnderWay,
    is_short_state,
    may_be_sent_to,
)
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.policy.config import AllowedHosts

LONGEST_REQUEST = 64 * 1024
_MOST_FIELDS = 100

type QueryFields = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Between:
    """The two sides of the translation."""

    ours: str
    """Our origin as the client calls us."""
    theirs: str
    """The upstream's origin as its metadata calls it."""
    server: ServerMetadata
    registrations: Registrations
    hosts: AllowedHosts
    """Hosts whose pages a browser may be sent to after a login, besides programs on this
    machine."""


def their_resource(resource: str, ours: str, theirs: str) -> str:
    """Return the upstream's resource for ours; other resources stay, and their server refuses
    them."""
    try:
        if parse_origin(resource) != parse_origin(ours):
            return resource
    except InvalidOption:
        return resource
    parts = urlsplit(resource)
    start = len(parts.scheme) + len("://") + len(parts.netloc)
    return theirs + resource[start:]


def authorize(query: str, between: Between, now: float) -> str:
    """Return the URL to which a browser goes to log in. Raises ProtocolError.

    It is always the authorization endpoint that the metadata names.
    """
    fields = _parse_fields(query)
    given = dict(fields)
    changed = dict[str, str | None]()
    registration = between.registrations.of(given.get("client_id", ""))
    if between.server.sends_issuer and registration is not None:
        asked, state = given.get("redirect_uri"), given.get("state")
        if asked is None and len(registration.redirect_uris) == 1:
            asked = registration.redirect_uris[0]
        if asked is None or not registration.has(asked):
            raise ProtocolError("The redirect_uri is not registered through this proxy")
        if may_be_sent_to([asked], between.hosts) is None:  # its host may not be allowed any more
            raise RefusedUri
        if not is_short_state(state):
            raise ProtocolError("The state is too long")
        login = UnderWay(registration, asked, state, between.ours, now)
        changed["redirect_uri"] = registration.callback
        changed["state"] = between.registrations.send_off(login)
    endpoint = between.server.authorization_endpoint.partition("#")[0]
    joint = "&" if "?" in endpoint else "?"
    return endpoint + joint + urlencode(_translated(fields, changed, between))


def with_their_resource(text: str, ours: str, theirs: str) -> str | None:
    """Return a query or form with the upstream's resource in place of ours; None if it has none.

    Used for an upstream whose metadata we do not know.
    """
    try:
        fields = _parse_fields(text)
    except ProtocolError:
        return None
    changed = [
        (name, their_resource(value, ours, theirs) if name == "resource" else value)
        for name, value in fields
    ]
    return None if changed == fields else urlencode(changed)


def come_back(path: str, query: str, between: Between, now: float) -> tuple[str, bool]:
    """Return the URL to which a browser goes after a login. Raises ProtocolError.

    Also tell whether it is the first login with its registration.
    """
    fields = _parse_fields(query)
    given = dict(fields)
    login = between.registrations.come_back(path, given.get("state", ""), now)
    if login is None:
        raise ProtocolError("This login was not started here, or has ended")
    if given.get("iss") != between.server.issuer:  # as raw strings (RFC 9207, 2.4)
        raise ProtocolError("The answer is from another authorization server")
    is_first = "code" in given and between.registrations.note_login(login.registration)
    said = [(name, value) for name, value in fields if name not in ("state", "iss")]
    if login.state is not None:
        said.append(("state", login.state))
    said.append(("iss", our_issuer(between.server.issuer, login.ours)))
    joint = "&" if "?" in login.redirect_uri else "?"
    return login.redirect_uri + joint + urlencode(said), is_first


def token_request(body: bytes, basic: str | None, between: Between) -> QueryFields:
    """Translate a token request; ``basic`` is the client's Authorization header."""
    fields = _parse_fields(_text(body))
    given = dict(fields)
    client_id = given.get("client_id") or _user_in(basic)
    changed = dict[str, str | None]()
    registration = between.registrations.of(client_id)
    if between.server.sends_issuer and registration is not None and "redirect_uri" in given:
        if not registration.has(given["redirect_uri"]):
            raise ProtocolError("The redirect_uri is not registered through this proxy")
        changed["redirect_uri"] = registration.callback
    return _translated(fields, changed, between)


def registration_request(body: bytes, between: Between) -> tuple[bytes, ClientRegistration | None]:
    """Translate a registration request; return it and what we register for the client."""
    asked = _object(body)
    if not between.server.sends_issuer:
        return body, None
    uris = may_be_sent_to(asked.get("redirect_uris"), between.hosts)
    if uris is None:
        raise RefusedUri()
    registration = between.registrations.begin(uris, between.ours)
    asked["redirect_uris"] = [registration.callback]
    asked.pop("software_statement", None)  # it may contradict the other members, and would win
    return json.dumps(asked).encode(), registration


def registration_answer(
    body: bytes, registration: ClientRegistration | None, between: Between
) -> bytes:
    """Translate the authorization server's answer to a registration, and remember it."""
    said = _object(body)
    if registration is None:
        return body
    client_id = said.get("client_id")
    if not isinstance(client_id, str) or len(client_id) > 4096:
        raise ProtocolError("A registration has no client_id")
    between.registrations.keep(client_id, registration)
    said["redirect_uris"] = list(registration.redirect_uris)
    for name in ("registration_client_uri", "registration_access_token"):
        said.pop(name, None)  # with these a client could read and replace our redirect URI
    return json.dumps(said).encode()


def check_answer(body: bytes) -> None:
    """Raise ProtocolError if an OAuth server would not answer like this."""
    _object(body)


class RefusedUri(ProtocolError):
    """A redirect URI to which we do not send browsers."""

    def __init__(self) -> None:
        super().__init__("Only redirect URIs on this machine, or of allowed hosts, are accepted")


def _translated(
    fields: Sequence[tuple[str, str]], changed: dict[str, str | None], between: Between
) -> QueryFields:
    kept: QueryFields = []
    for name, value in fields:
        if name == "resource":
            kept.append((name, their_resource(value, between.ours, between.theirs)))
        elif name not in changed:
            kept.append((name, value))
    return kept + [(name, value) for name, value in changed.items() if value is not None]


def _parse_fields(text: str) -> QueryFields:
    """Parse a query or a form; only ``resource`` may be repeated (RFC 6749, 3.1)."""
    try:
        fields = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise ProtocolError("The parameters cannot be read") from None
    names = [name for name, _ in fields if name != "resource"]
    if len(set(names)) < len(names):
        raise ProtocolError("A parameter is given twice")
    return fields


def _user_in(basic: str | None) -> str:
    try:
        user, _, _ = base64.b64decode(basic or "", validate=True).decode().partition(":")
    except ValueError:
        return ""
    return unquote_plus(user)


def _text(body: bytes) -> str:
    try:
        return body.decode("ascii")
    except UnicodeDecodeError:
        raise ProtocolError("The parameters cannot be read") from None


def _object(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolError("Not JSON") from None
    if not isinstance(found, dict):
        raise ProtocolError("Not a JSON object")
    return found
