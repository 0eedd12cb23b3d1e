r"""Who asks: may they, whose list do they get, and may their web page read our answers?

A web page can reach a local address in two ways. It may use a host name that resolves to us (DNS
rebinding): Host shows that. Or it may send a cross-site request: Origin shows that, or
Sec-Fetch-Site if the browser sends no Origin (``<img>``, ``<script>``, a link).

>>> fields = ((b"Host", b"localhost:6273"), (b"Sec-Fetch-Site", b"cross-site"))
>>> problem_in_source(AllowedHosts(), Head("POST", "/mcp", fields))
'Sec-Fetch-Site'

If the upstream can distinguish a request from the one that fetched the snapshot, its answer may
differ: another user's list, a list in another language. We list the headers that make no
difference; all others count as a difference:

>>> is_like_the_fetch(Head("POST", "/mcp", ((b"Accept", b"*/*"), (b"User-Agent", b"x"))))
True
>>> is_like_the_fetch(Head("POST", "/mcp", ((b"X-Forwarded-User", b"ann"),)))
False

The operator's headers add what a request lacks (``headers_to_add``). A request with its own
credentials gets none of ours: with both, an upstream could give one user the rights of another.

A browser shows an answer to a page of another origin only if the answer's CORS headers allow it.
The upstream decides that. We keep its last CORS headers for each origin and path, so that our own
answers allow exactly the same:

>>> memory = CorsMemory()
>>> page = Page("http://localhost:6274", "/mcp")
>>> memory.learn(page, 200, [(b"Access-Control-Allow-Origin", b"*"), (b"Server", b"x")])
>>> memory.headers_for(page)
((b'access-control-allow-origin', b'*'),)
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mcp_tool_filter.core.http.head import NOT_SENT, Fields, Head, is_credential, is_harmless
from mcp_tool_filter.core.policy.config import AllowedHosts, plain_path

# "none": the user typed the URL. Other programs than browsers do not send the header.
_OWN_SITES = frozenset({"same-origin", "none"})


def problem_in_source(
    allowed: AllowedHosts, head: Head, *, authority: str | None = None, own: str = ""
) -> str | None:
    """Return the name of the header that makes us refuse a request, or None.

    ``authority`` is the host of its target, if that is a URL; ``own`` is our address to which the
    client has connected.
    """
    hosts = {one.lower() for one in head.all(b"host")}
    if authority is not None:
        hosts.add(authority.lower())
    if len(hosts) != 1 or not _has_host(allowed, hosts.pop(), own):
        return "Host"
    if origins := head.all(b"origin"):  # an allowed one may ask from any site, also in preflights
        return None if all(allowed.has_origin(origin, own) for origin in origins) else "Origin"
    sites = head.all(b"sec-fetch-site")
    if sites and not allowed.has_all and not _OWN_SITES.issuperset(map(_plain, sites)):
        return "Sec-Fetch-Site"
    return None


@lru_cache(maxsize=64)  # clients send the same few hosts again and again
def _has_host(hosts: AllowedHosts, host: str, own: str) -> bool:
    return hosts.has_host(host, own)


def _plain(site: str) -> str:
    return site.strip(" \t").lower()


_NONE: frozenset[bytes] = frozenset()


# Headers of gateways that say how a request came (not all X-Forwarded-…: some name a user or a
# tenant), and those that repeat the message.
_NOT_OF_THE_ASKER = re.compile(
    rb"via|x-real-ip|x-forwarded-(?:for|port|proto|scheme|server)|mcp-param-.*", re.DOTALL
)
# Headers whose value differs with each request of one asker; their name counts, not their value.
_RENEWED_HEADER = re.compile(
    rb"dpop|(?:.*-)?(?:nonce|timestamp|signature|digest|hmac|date|(?:request|start|client)-time"
    rb"|(?:retry|attempt)-count|retry-attempt|attempts?|sequence)"
    rb"|content-md5|x-amz-content-sha256|if-(?:none-)?match|if-(?:un)?modified-since"
    rb"|(?:grpc-|x-)?timeout|x-envoy-(?:attempt-count|expected-rq-timeout-ms)|x-amz-cf-id|x-azure-ref|x-arr-log-id|x-vercel-id|x-timer"
    rb"|x-queue-start|(?:.*-)?(?:client|source|remote)-port"
    # traces, besides those that are harmless by their names
    rb"|sw8(?:-.*)?|x-newrelic-.*|x-instana-.*|x-dynatrace(?:-.*)?|correlation-context"
    rb"|(?:x-)?(?:trace|span|ot-span)(?:-context|response)?|singularityheader",
    re.DOTALL,
)
# Credentials that sign each request anew name the same user in the rest of their parts.
_SCHEME = re.compile(rb"(\S+)\s")
_SIGNING = re.compile(rb"(?is)aws4-.+|digest|hawk|oauth|signature|.*hmac.*")
_OF_ONE_REQUEST = re.compile(
    rb"(?i)\b(?:oauth_)?(?:signature|sig|mac|c?nonce|nc|response|timestamp|ts|hash|created|expires"
    rb"|date|uri)=(?:\"[^\"]*\"|[^,;\s]*)"
)
# Cookies that a load balancer or a bot filter renews with each answer.
_RENEWED = re.compile(
    rb"(?i)AWSALB\w*|__cf_bm|_cfuvid|__cflb|_ga\w*|_gid|ak_bmsc|bm_\w+|datadome|_dd_s|incap_ses_\w+"
)
# A port behind an address is that of one connection.
_WITH_PORT = re.compile(rb"(\d\.\d+|\]):\d+")
_OF_A_TRACE = re.compile(rb"(?i)[ \t]*(?:sentry-|trace_?id|span_?id|trace-|request_?id)")
_QUERY_OF_ONE_REQUEST = re.compile(
    r"(?i)(?:request|trace|correlation)[-_]?id|nonce|timestamp|ts|_|cache[-_]?bust(?:er)?|rand(?:om)?"
)


def credentials_in(head: Head) -> bytes:
    """Return the headers that identify the asker to an upstream; equal for equal credentials.

    A gateway may have checked a client's certificate or login, and name the user.
    """
    named = filter(_OF_A_GATEWAY.fullmatch, head.names.askers)
    credentials = head.names.credentials.union(named)
    if not credentials:
        return b""
    said = [(name.lower(), value) for name, value in head.headers]
    return b"\n".join(b"%b: %b" % one for one in sorted(said) if one[0] in credentials)


# Not what users have in common, such as the issuer of their certificates.
_OF_A_GATEWAY = re.compile(
    rb"client-cert|x-forwarded-client-cert|x-amzn-mtls-clientcert(?:-leaf|-subject|-serial-number)?"
    rb"|(?:x-)?(?:ssl-)?client-(?:cert|certificate|s-dn|dn|cn|subject(?:-dn)?|sha1|serial|spiffe-id"
    rb"|fingerprint|san|email)"
    rb"|(?:x-)?(?:remote|forwarded|user)-(?:user|email|preferred-username|id|name|login)"
    rb"|x-ms-client-principal(?:-id|-name)?|tailscale-user-login|(?:x-)?(?:peer-)?spiffe-id"
)


def asker_in(head: Head) -> bytes:
    """Return all that an answer may depend on besides the message: an equal request of another
    user differs in it, even if the user is identified by the URL.
    """
    told = sorted(
        (name.lower(), value)
        for name, value in head.headers
        if not is_harmless(name.lower()) and not _NOT_OF_THE_ASKER.fullmatch(name.lower())
    )
    target = head.target.encode("utf-8", "surrogateescape")
    return b"\n".join([target, *(name + b":" + value for name, value in told)])


def is_like_the_fetch(head: Head, *, known_origin: bool = False) -> bool:
    """Tell whether an upstream must answer a request with this head as it answered the fetch.

    With ``known_origin`` the upstream has answered pages of this origin before.
    """
    return head.names.are_harmless or all(
        _is_harmless(name, head, known_origin)
        for name in head.names.places
        if not is_harmless(name)
    )


def identity_in(head: Head, place: str = "") -> bytes:
    """Return what makes a request one of another asker, in a fixed order; empty if nothing does.

    All headers count that are not known to be harmless: nobody can list the names by which
    upstreams know users. But of values that differ with each request, only what stays the same
    counts. Else every request would be an asker about whom we know nothing, and a changed or new
    tool would pass. ``place`` is the target if the upstream may identify askers by it.
    """
    askers = head.names.askers - NOT_SENT
    told = sorted(
        name.lower() + b":" + _lasting(name.lower(), value)
        for name, value in head.headers
        if name.lower() in askers
        and not name.lower().startswith(b"mcp-param-")  # it repeats an argument of a call
        and (value != b"*" or name.lower() != b"accept-language")
    )
    if place:
        path, _, query = place.partition("?")
        named = _QUERY_OF_ONE_REQUEST.fullmatch
        parts = [one for one in query.split("&") if not named(one.partition("=")[0])]
        told.insert(0, f"{path}?{'&'.join(parts)}".encode("utf-8", "surrogateescape"))
    return b"\n".join(told)


def _lasting(name: bytes, value: bytes) -> bytes:
    """Return the part of a credential that stays the same from one request to the next."""
    if name == b"cookie":
        cookies = (one.strip() for one in value.split(b";"))
        kept = (cookie for cookie in cookies if not _RENEWED.fullmatch(cookie.partition(b"=")[0]))
        return b";".join(sorted(kept))
    if name == b"baggage":
        told = (one for one in value.split(b",") if not _OF_A_TRACE.match(one))
        return b",".join(sorted(told))
    if name in (b"forwarded", b"x-forwarded-for"):
        return _WITH_PORT.sub(rb"\1", value)
    if name == b"signature-input":
        return _OF_ONE_REQUEST.sub(b"", value)
    if _RENEWED_HEADER.fullmatch(name):
        return b""
    scheme = _SCHEME.match(value)
    is_signed = scheme is not None and _SIGNING.fullmatch(scheme[1]) is not None
    return _OF_ONE_REQUEST.sub(b"", value) if is_signed else value


def _is_harmless(name: bytes, head: Head, known_origin: bool) -> bool:
    value = head.get(name)
    match name:
        case b"accept-language":  # Node sends "*", which means the same as no header
            return value == "*"
        case b"origin":
            return known_origin
        case b"referer":  # browsers send only the origin of a page elsewhere
            return known_origin and value == f"{head.get(b'origin')}/"
    return False


type HeaderPairs = Sequence[tuple[str, str]]


def headers_to_add(head: Head, headers: HeaderPairs) -> HeaderPairs:
    """Return the headers of ours that a request gets.

    >>> headers_to_add(Head("POST", "/mcp", ()), [("Authorization", "ours")])
    [('Authorization', 'ours')]
    >>> headers_to_add(Head("POST", "/mcp", ((b"Cookie", b"a=b"),)), [("Authorization", "ours")])
    []
    """
    names = head.names.places
    missing = [header for header in headers if header[0].lower().encode() not in names]
    if missing and head.credentials:
        return [one for one in missing if not is_credential(one[0].lower().encode())]
    return missing


_ALLOW_ORIGIN = b"access-control-allow-origin"
_OF_ANSWERS = frozenset({
    _ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers",
})  # fmt: skip
_ORIGIN = frozenset({b"origin", b"*"})  # in Vary
_MOST_PAGES = 256
_LONGEST = 4096  # bytes that are kept for one page


@dataclass(frozen=True, slots=True)
class Page:
    """The origin of a web page, and the path that it requests."""

    origin: str
    path: str
    """Without its query."""
    has_cookie: bool = False
    """Some upstreams send ``*`` only to requests without a cookie."""


def page_of(head: Head) -> Page | None:
    """Return the page that sends the request; None if it is not a page, or too long to remember."""
    origin = head.get(b"origin")
    if not origin or len(origin) + len(head.target) > _LONGEST:
        return None
    return Page(origin, plain_path(head.target), b"cookie" in head.names.places)


@dataclass(slots=True)
class _Learned:
    from_answer: Fields | None = None
    from_preflight: Fields | None = None

    @property
    def fields(self) -> Fields:
        """The headers of the last answer; before any answer, those of the preflight."""
        return self.from_preflight or () if self.from_answer is None else self.from_answer


class CorsMemory:
    """The CORS headers by page. It forgets the least recently used."""

    def __init__(self) -> None:
        self._learned: OrderedDict[Page, _Learned] = OrderedDict()

    def learn(
        self,
        page: Page,
        status: int,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        is_preflight: bool = False,
    ) -> None:
        """Keep the upstream's CORS headers, all from one answer: we never mix two answers."""
        fields = tuple(_cors_fields(headers))
        if status >= 500 and not fields:
            return  # frameworks forget CORS on their error pages
        if sum(len(name) + len(value) for name, value in fields) > _LONGEST:
            fields = ()
        if page not in self._learned and not fields:
            return
        learned = self._learned.setdefault(page, _Learned())
        self._learned.move_to_end(page)
        if is_preflight:
            learned.from_preflight = fields
        else:
            learned.from_answer = fields
        while len(self._learned) > _MOST_PAGES:
            self._learned.popitem(last=False)

    def headers_for(self, page: Page) -> Fields:
        """Return the CORS headers for our own answer to a page."""
        learned = self._learned.get(page)
        if learned is None:
            return ()
        self._learned.move_to_end(page)
        return learned.fields

    def is_allowed(self, page: Page) -> bool:
        """Tell whether the upstream has let this page read its answers."""
        return any(name == _ALLOW_ORIGIN for name, _ in self.headers_for(page))

    def __len__(self) -> int:
        return len(self._learned)


def _cors_fields(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    for name, value in headers:
        plain = name.lower()
        if plain in _OF_ANSWERS:
            yield plain, value
        elif plain == b"vary" and _ORIGIN.intersection(map(bytes.strip, value.lower().split(b","))):
            yield b"vary", b"Origin"
