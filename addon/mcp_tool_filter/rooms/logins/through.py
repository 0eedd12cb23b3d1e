"""Stand in for the authorization server of one upstream, so that clients can log in through us.

We send requests only to URLs in the upstream's own metadata, never to URLs from a client. We keep
no answers except metadata documents, for a short time; tokens only pass through.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.head import SAFE_METHODS, Head
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.messages import is_json_rpc
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.core.policy.config import is_misleading
from mcp_tool_filter.rooms.logins.discovery import (
    Discovered,
    Web,
    WebAnswer,
    WebFailed,
    find_login,
)
from mcp_tool_filter.rooms.logins.logins_through import (
    CALLBACK,
    Between,
    RefusedUri,
    Registrations,
    Sides,
    our_issuer,
    passes_through,
)
from mcp_tool_filter.rooms.logins.metadata import (
    AUTHORIZE,
    REGISTER,
    RESOURCE_DOCUMENT,
    SERVER_DOCUMENTS,
    TOKEN,
    ServerMetadata,
    is_login_document,
    metadata_urls_in,
    object_in,
    server_documents,
)
from mcp_tool_filter.rooms.logins.store import KeptRegistrations


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """An answer of ours instead of the authorization server's."""

    status: int
    body: bytes = b""
    """JSON, if there is one."""
    headers: tuple[tuple[str, str], ...] = ()


def passed_on(got: WebAnswer, body: bytes) -> LoginAnswer:
    if 300 <= got.status < 400:
        raise WebFailed("a redirect that is not allowed here")
    if object_in(got.body) is None:
        raise WebFailed("an answer that is no JSON object")
    return json_answer(got.status, body)


def json_answer(status: int, body: bytes) -> LoginAnswer:
    return LoginAnswer(status, body, (("cache-control", "no-store"),))


def redirect_to(url: str) -> LoginAnswer:
    headers = (("location", url), ("cache-control", "no-store"), ("referrer-policy", "no-referrer"))
    return LoginAnswer(302, headers=headers)


def error_answer(status: int, error: str, description: str) -> LoginAnswer:
    said = {"error": error, "error_description": description}
    return json_answer(status, json.dumps(said).encode())


NOT_FOUND = error_answer(404, "not_found", "There is nothing here")


log = logging.getLogger(__name__)

_KEPT = 120.0  # seconds until we fetch a document again
_KEPT_NOTHING = 3.0
_MOST_PLACES = 16
_MOST_AT_ONCE: Final = 32
_ENDPOINTS = {AUTHORIZE: "GET", TOKEN: "POST", REGISTER: "POST"}


@dataclass(slots=True, eq=False)
class Through:
    """The logins to one upstream through us."""

    listener: Listener
    open_web: Callable[[], Web]
    is_plain: bool = False
    """True to rewrite only the metadata: clients talk to the authorization server directly."""
    kept: KeptRegistrations | None = None
    """The file that keeps registrations beyond this process."""
    registrations: Registrations = field(default_factory=Registrations)
    _web: Web | None = None
    _asks: bool = False
    """True once the upstream has refused a request without a login."""
    _places: dict[str, None] = field(default_factory=dict)
    """More paths of its metadata, named by its challenges."""
    _found: Discovered | None = None
    _found_at: float = float("-inf")
    _finding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))

    @property
    def web(self) -> Web:
        """The HTTP client. (Created late: loading certificates takes a moment.)"""
        if self._web is None:
            self._web = self.open_web()
        return self._web

    # Requests

    def concerns(self, head: Head) -> bool:
        """Tell whether a request may be part of a login."""
        path = head.target.partition("?")[0]
        return (
            (path in _ENDPOINTS and self._wants_login)
            or path.startswith(CALLBACK)
            or self.is_resource_document(head.target)
            or _is_server_document(head.target)
        )

    @property
    def _wants_login(self) -> bool:
        """Tell whether the upstream has ever shown that it wants a login. Otherwise such a path is
        its own.

        It does so by a 401 at the start or later, or by metadata that a client has asked for.
        """
        return self._has_refused or self._found is not None

    @property
    def _has_refused(self) -> bool:
        return self._asks or not self.listener.policy.kinds.start.is_listed

    @property
    def _endpoint(self) -> str:
        """The path of the MCP endpoint."""
        return urlsplit(self.listener.fetched.endpoint).path

    def is_resource_document(self, target: str) -> bool:
        """Tell whether protected-resource metadata is at this path."""
        path = target.partition("?")[0]
        is_usual = path == RESOURCE_DOCUMENT or path.startswith(RESOURCE_DOCUMENT + "/")
        return (is_usual and not is_misleading(path)) or path in self._places

    async def answer(self, head: Head, body: bytes, ours: str) -> LoginAnswer | None:
        """Answer instead of the authorization server; None if the upstream should answer."""
        path, _, query = head.target.partition("?")
        found = await self.find()
        if self.is_resource_document(head.target):
            is_read = head.method in SAFE_METHODS
            return self._resource_metadata(found, path, ours) if found and is_read else None
        if path.startswith(CALLBACK):
            if found is None:
                return NOT_FOUND
            here = self.listener.mount.prefix + path
            return await self._come_back(here, query, self._between(found, ours))
        if found is None or not self._stands_for(found.server):
            return None
        if body and _is_message(body):
            return None  # no login: the filter judges it, like a message to any other path
        if _is_server_document(head.target):
            return self._metadata(found, path, ours)
        if head.method != _ENDPOINTS[path]:
            return LoginAnswer(405, headers=(("allow", _ENDPOINTS[path]),))
        between = self._between(found, ours)
        if self.kept and found.server.sends_issuer:
            await self.kept.read_into(self.registrations)
        try:
            if path == AUTHORIZE:
                return redirect_to(between.authorize(query, time.monotonic()))
            if len(body) > HEAD:
                return error_answer(413, "invalid_request", "The request is too large")
            async with self._room:
                if path == TOKEN:
                    return await self._token(head, body, between)
                return await self._register(body, between)
        except RefusedUri as error:
            return error_answer(400, "invalid_redirect_uri", str(error))
        except ProtocolError as error:
            return error_answer(400, "invalid_request", str(error))
        except WebFailed:
            return error_answer(
                502, "server_error", "The authorization server gave no usable answer"
            )

    def translated(self, head: Head, body: bytes, ours: str) -> tuple[str, bytes] | None:
        """Return the changed target and body of a request for the upstream, or None.

        A client names us as the resource even without metadata.
        """
        path, mark, query = head.target.partition("?")
        if path not in (AUTHORIZE, TOKEN) or self.is_plain:
            return None
        try:
            text = query if path == AUTHORIZE else body.decode("ascii")
        except UnicodeDecodeError:
            return None
        changed = self._sides(ours).translated_text(text, self.listener.upstream)
        if changed is None:
            return None
        return (
            (path + mark + changed, body) if path == AUTHORIZE else (head.target, changed.encode())
        )

    def _resource_metadata(self, found: Discovered, path: str, ours: str) -> LoginAnswer | None:
        """Describe an upstream of MCP 2025-03-26 below a prefix: it says nothing, and clients would
        look for its login at our root."""
        mount, here = self.listener.mount, self._endpoint
        if not (
            found.resource is None and mount.prefix and path == RESOURCE_DOCUMENT + here.rstrip("/")
        ):
            return None
        stands = self._stands_for(found.server)
        named = found.server.named
        issuer = our_issuer(named, ours) if stands else named
        said = {"resource": mount.url(ours, here), "authorization_servers": [issuer]}
        return json_answer(200, json.dumps(said).encode())

    def _metadata(self, found: Discovered, path: str, ours: str) -> LoginAnswer:
        server = found.server
        issuers = {our_issuer(server.named, ours), our_issuer(server.issuer, ours)}
        places = {urlsplit(url).path for issuer in issuers for url in server_documents(issuer)}
        if path not in map(self.listener.mount.inward_of_whole, places):
            return NOT_FOUND
        return json_answer(200, self._sides(ours).server_metadata(server.document))

    async def _token(self, head: Head, body: bytes, between: Between) -> LoginAnswer:
        kind, _, basic = (head.get(b"authorization") or "").partition(" ")
        proof = basic.strip() if kind.lower() == "basic" else None
        fields = between.token_request(body, proof)
        got = await self.web.post_form(between.server.token_endpoint, fields, basic=proof)
        return passed_on(got, got.body)

    async def _register(self, body: bytes, between: Between) -> LoginAnswer:
        assert between.server.registration_endpoint
        asked, registration = between.registration_request(body)
        got = await self.web.post_json(between.server.registration_endpoint, asked)
        is_done = 200 <= got.status < 300
        try:
            said = between.registration_answer(got.body, registration) if is_done else got.body
        except ProtocolError as error:
            raise WebFailed(str(error)) from None
        if self.kept and is_done and registration is not None:
            await self.kept.write(self.registrations)
        return passed_on(got, said)

    async def _come_back(self, path: str, query: str, between: Between) -> LoginAnswer:
        try:
            url, is_first = between.come_back(path, query, time.monotonic())
        except ProtocolError as error:
            return error_answer(400, "invalid_request", str(error))
        if self.kept and is_first:
            await self.kept.write(self.registrations)
        return redirect_to(url)

    def _between(self, found: Discovered, ours: str) -> Between:
        hosts = self.listener.config.allowed_hosts
        return Between(self._sides(ours), found.theirs, found.server, self.registrations, hosts)

    def _sides(self, ours: str) -> Sides:
        return Sides(ours, self.listener.names, self.listener.mount)

    def _stands_for(self, server: ServerMetadata) -> bool:
        return not self.is_plain and passes_through(server)

    # Answers

    def note_challenges(self, challenges: list[str]) -> None:
        """Learn from a refusal of the MCP endpoint that it wants a login, and which kind."""
        before = self._asks, len(self._places)
        self._asks = True
        for challenge in challenges:
            for url in metadata_urls_in(challenge):
                path = (Sides("", self.listener.names).our_url(url) or "").partition("?")[0]
                if self._may_be_place(path) and len(self._places) < _MOST_PLACES:
                    self._places[path] = None
        if self._found is None and before != (True, len(self._places)):
            self._found_at = float("-inf")

    def _may_be_place(self, path: str) -> bool:
        is_known = not path or self.is_resource_document(path) or path in _ENDPOINTS
        is_mcp = self.listener.takes_headers(path) or path.startswith(CALLBACK)
        return not is_known and not is_mcp and len(path) < 1024 and not is_misleading(path)

    def rewrite_challenge(self, challenge: str, ours: str) -> str:
        """Return a challenge that names our metadata."""
        mount = self.listener.mount
        usual = mount.url(ours, RESOURCE_DOCUMENT + self._endpoint.removesuffix("/"))
        return self._sides(ours).challenge(challenge, usual)

    def rewrite_document(self, document: bytes, ours: str) -> bytes | None:
        """Return protected-resource metadata that names us; None to leave it unchanged."""
        found = self._found
        is_full = found is not None and self._stands_for(found.server)
        issuer = our_issuer(found.server.named, ours) if found and is_full else None
        return self._sides(ours).resource_metadata(document, issuer)

    # The upstream's metadata

    async def find(self) -> Discovered | None:
        """Return how to log in to the upstream; None if it wants no login."""
        async with self._finding:
            kept = _KEPT if self._found else _KEPT_NOTHING
            if time.monotonic() - self._found_at > kept:
                try:
                    guesses = bool(self.listener.mount.prefix) and self._has_refused
                    self._found = await find_login(
                        self.listener, self.web, self._places, guesses=guesses
                    )
                except (WebFailed, ProtocolError) as error:
                    log.info("cannot find out how clients log in: %s", error)
                self._found_at = time.monotonic()
            return self._found


def _is_message(body: bytes) -> bool:
    try:
        return is_json_rpc(body)
    except ProtocolError:  # such as a form
        return False


def _is_server_document(target: str) -> bool:
    path = target.partition("?")[0]
    return any(document in path for document in SERVER_DOCUMENTS) and is_login_document(target)
