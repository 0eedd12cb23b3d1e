"""Honest traffic that is not MCP: logins, metadata, pages."""

# ruff: noqa: E501 - tables

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks.honest.base import FORM, Exchange
from tests.attacks.hostile_requests import HOST, post
from tests.attacks.stage import DENIED
from tests.raw_upstream import answer


def in_documents() -> Iterator[Exchange]:
    """What an upstream serves beside MCP."""
    for label, body in {
        "token": b"grant_type=authorization_code&code=a%2Fb&redirect_uri=http%3A%2F%2Flocalhost%3A1%2Fcb&client_id=x&code_verifier=y~z",
        "refresh": b"grant_type=refresh_token&refresh_token=abc.def-1&scope=tools%3Aread+tools%3Acall&resource=http://localhost/mcp",
        "introspection": b"token=abc&token_type_hint=access_token",
        "revocation": b"token=a%3D%3D&client_id=1",
        "consent": b"method=consent&approve=yes",
    }.items():
        yield Exchange(
            f"OAuth form: {label}",
            post(body, path=b"/token", kind=FORM),
            (answer(b'{"access_token":"x","token_type":"Bearer","scope":"tools:read"}'),),
        )
    registration = b'{"client_name":"c","redirect_uris":["http://localhost/cb"],"token_endpoint_auth_method":"none","grant_types":["authorization_code"]}'
    yield Exchange(
        "OAuth registration",
        post(registration, path=b"/register"),
        (answer(b'{"client_id":"1","client_name":"c"}', status="201 Created"),),
    )
    for path, kind, content in [
        (
            b"/.well-known/oauth-protected-resource",
            "application/json",
            b'{"resource":"http://x/mcp","authorization_servers":["https://as.example"],"scopes_supported":["tools:call"]}',
        ),
        (
            b"/.well-known/oauth-authorization-server",
            "application/json",
            b'{"issuer":"https://as.example","token_endpoint":"https://as.example/token"}',
        ),
        (
            b"/.well-known/openid-configuration",
            "application/json; charset=utf-8",
            b'{"issuer":"x"}',
        ),
        (b"/health", "text/plain", b"ok"),
        (b"/", "text/html; charset=utf-8", "<!doctype html><p>\u00e9 use tools</p>".encode()),
        (b"/login", "text/html; charset=iso-8859-1", "<form>\u00e9</form>".encode("latin-1")),
        (b"/favicon.ico", "image/x-icon", bytes(range(256))),
        (b"/app.js", "text/javascript", b"var a = {};"),
        (b"/jwks.json", "application/jwk-set+json", b'{"keys":[]}'),
        (b"/metrics", "text/plain; version=0.0.4", b"# HELP x y\nx 1\n"),
        (b"/list.json", "application/json", b'["' + DENIED.encode() + b'",1]'),
        (b"/card", "application/json", b'{"name":"server","tools":[]}'),
        (b"/empty", "application/json", b""),
    ]:
        get = b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Accept: */*\r\n\r\n"
        yield Exchange(f"document {path.decode()}", get, (answer(content, kind=kind),))
