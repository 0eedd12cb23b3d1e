"""Secrets planted in every place that a flow has: none is left in the file, in no spelling."""

from __future__ import annotations

import base64
import gzip
import json
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mitmproxy.flow import Error
from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.test import tflow, tutils
from mitmproxy.websocket import WebSocketMessage
from wsproto.frame_protocol import Opcode

from mcp_tool_filter.adapters.recordings.flow_dump import KEY, read_flows, write_flows
from mcp_tool_filter.adapters.recordings.scrub import Scrubber
from mcp_tool_filter.cli.launcher import main

type Plant = Callable[[HTTPFlow, str], None]
type NamedPlant = Callable[[HTTPFlow, str, str], None]

NAMES = [
    "api_key", "apiKey", "API-KEY", "client_secret", "clientSecret", "refresh_token",
    "refreshToken", "access_token", "accessToken", "id_token", "idToken", "password", "Password",
    "client_assertion", "device_code", "deviceCode", "code_verifier", "codeVerifier",
    "private_key", "secretAccessKey", "db_password", "githubToken", "auth_token",
]  # fmt: skip
FORM_NAMES = [*NAMES, "code", "assertion", "subject_token", "user[password]", "session_id"]
HEADERS = [
    "Authorization", "Proxy-Authorization", "X-Api-Key", "X-Custom-Jwt", "Mcp-Session-Id",
    "Cf-Access-Jwt-Assertion", "X-Auth-Token", "Private-Token", "X-Vault-Token", "X-Password",
    "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Amz-Security-Token", "DPoP",
    "X-Access-Key", "X-Session", "X-Webhook-Signature",
]  # fmt: skip
SHAPES = [
    "Bearer {}", "bearer {}", "eyJhbGciOiJIUzI1NiJ9.eyJ{}.c2lnbmF0dXJl", "ghp_{}", "gho_{}",
    "github_pat_{}", "sk-{}", "sk-ant-api03-{}", "sk_live_{}", "xoxb-{}", "xoxp-1-{}", "AIza{}{}",
    "ya29.{}", "glpat-{}", "npm_{}{}", "hf_{}{}", "whsec_{}", "GOCSPX-{}",
    "https://hooks.slack.com/services/T0/B0/{}", "https://bob:{}@host/path", "AKIA{}",
    "-----BEGIN PRIVATE KEY-----\n{}\n{}\n-----END PRIVATE KEY-----\n", "?api_key={}",
    "password={}", "password: {}", 'curl -H "X-Api-Key: {}" http://h/', "--token {}",
    "{{'client_secret': '{}'}}", "export GITHUB_TOKEN={}", "/cb?state=a&code={}#x",
    "postgres://app:{}@db:5432/x",
]  # fmt: skip


def request_headers(made: HTTPFlow, name: str, value: str) -> None:
    made.request.headers.add(name, value)


def answer_json(made: HTTPFlow, body: Any) -> None:
    assert made.response
    made.response.headers["content-type"] = "application/json"
    made.response.content = json.dumps(body).encode()


def answer_event(made: HTTPFlow, data: str) -> None:
    assert made.response
    made.response.headers["content-type"] = "text/event-stream"
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    made.response.content = f"event: message\nid: 1\n{lines}\n".encode()


def multipart(made: HTTPFlow, name: str, secret: str) -> None:
    made.request.headers["content-type"] = "multipart/form-data; boundary=abc"
    made.request.content = (
        f'--abc\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{secret}\r\n--abc--\r\n'
    ).encode()


def form(made: HTTPFlow, name: str, secret: str) -> None:
    made.request.headers["content-type"] = "application/x-www-form-urlencoded"
    made.request.content = f"grant_type=x&{name}={quote(secret)}&z=1".encode()


def kept(made: HTTPFlow, **parts: Any) -> None:
    asked = {"host": "h", "headers": [], "body": b""}
    made.metadata[KEY] = {"format": 1, "asked": asked, **parts}


def said(*chunks: bytes, headers: list[list[bytes]] | None = None) -> dict[str, Any]:
    pieces = [[float(number), chunk] for number, chunk in enumerate(chunks)]
    size = sum(map(len, chunks))
    fields = headers or []
    return {
        "status": 200, "headers": fields, "at": 1.0, "chunks": pieces, "ended": None,
        "size": size, "left_out": 0,
    }  # fmt: skip


def fetched(endpoint: str, page: bytes = b"{}") -> dict[str, Any]:
    return {
        "transport": "streamable", "revision": "r", "endpoint": endpoint, "server": ["s", "1"],
        "sessions": False, "pages": [page],
    }  # fmt: skip


def gzipped(made: HTTPFlow, secret: str) -> None:
    assert made.response
    made.response.headers["content-encoding"] = "gzip"
    made.response.raw_content = gzip.compress(json.dumps({"api_key": secret}).encode())


def websocket(made: HTTPFlow, text: str) -> None:
    assert made.websocket
    made.websocket.messages.append(WebSocketMessage(Opcode.TEXT, True, text.encode()))


def trailers(made: HTTPFlow, secret: str) -> None:
    made.request.trailers = Headers([(b"x-api-key", secret.encode())])


def basic(made: HTTPFlow, secret: str) -> None:
    credential = base64.b64encode(f"bob:{secret}".encode()).decode()
    request_headers(made, "Authorization", f"Basic {credential}")
    made.comment = f"the password was {secret}, I think"


def set_error(made: HTTPFlow, secret: str) -> None:
    made.error = Error(f"cannot reach https://u:{secret}@host/")


def set_connections(made: HTTPFlow, secret: str) -> None:
    made.client_conn.error = f"Bearer {secret}"
    made.server_conn.error = f"token={secret}"
    made.server_conn.sni = f"ghp_{secret}"


def backed_up(made: HTTPFlow, secret: str) -> None:
    made.request.headers["x-api-key"] = secret
    made.backup()
    made.request.headers["x-api-key"] = "changed-by-a-person"


def split_over_chunks(made: HTTPFlow, secret: str) -> None:
    body = f'data: {{"accessToken":"{secret}"}}\n\n'.encode()
    kept(made, said=said(body[:30], body[30:40], body[40:], headers=[]))


PLANTS: dict[str, Plant] = {
    "path": lambda made, s: setattr(made.request, "path", f"/mcp?api_key={s}&x=1"),
    "path-escaped": lambda made, s: setattr(
        made.request, "path", f"/a?n=%7B%22token%22%3A%22{s}%22%7D"
    ),
    "path-url": lambda made, s: setattr(
        made.request, "path", f"/a?redirect_uri=http%3A%2F%2Fh%2F%3Fcode%3D{s}"
    ),
    "path-shape": lambda made, s: setattr(made.request, "path", f"/bot/ghp_{s}/send"),
    "authority": lambda made, s: setattr(made.request, "authority", f"user:{s}@host"),
    "cookie": lambda made, s: request_headers(made, "Cookie", f"a=b; sid={s}"),
    "set-cookie": lambda made, s: request_headers(made, "Set-Cookie", f"sid={s}; Path=/; Secure"),
    "location": lambda made, s: request_headers(made, "Location", f"https://h/cb?code={s}"),
    "referer": lambda made, s: request_headers(made, "Referer", f"https://h/#access_token={s}"),
    "websocket-protocol": lambda made, s: request_headers(
        made, "Sec-WebSocket-Protocol", f"mcp, base64url.bearer.authorization.k8s.io.{s}"
    ),
    "basic": basic,
    "json-list": lambda made, s: answer_json(made, {"tokens": 1, "passwords": [], "secrets": [s]}),
    "json-pair": lambda made, s: answer_json(made, [{"name": "DB_PASSWORD", "value": s}]),
    "json-header": lambda made, s: answer_json(made, {"headers": {"X-Custom-Jwt": s}}),
    "json-header-list": lambda made, s: answer_json(made, {"h": [["x-api-key", s]]}),
    "json-cookies": lambda made, s: answer_json(made, {"cookies": {"anything": s}}),
    "json-login": lambda made, s: answer_json(made, {"grant_type": "g", "code": s}),
    "json-in-text": lambda made, s: answer_json(
        made, {"content": [{"type": "text", "text": json.dumps({"apiKey": s})}]}
    ),
    "json-in-json-in-json": lambda made, s: answer_json(
        made, {"t": json.dumps({"t": json.dumps({"t": json.dumps({"password": s})})})}
    ),
    "json-within-prose": lambda made, s: answer_json(
        made, {"text": 'Result: {"client_secret": "' + s + '"} (ok)'}
    ),
    "json-cut-off": lambda made, s: setattr(made.request, "content", b'{"password":"' + s.encode()),
    "json-base64": lambda made, s: answer_json(
        made, {"blob": base64.b64encode(f'{{"password":"{s}"}}'.encode()).decode()}
    ),
    "json-number": lambda made, s: answer_json(made, {"otp": int(s.encode().hex(), 16)}),
    "json-key": lambda made, s: answer_json(made, {f"ghp_{s}": 1}),
    "form-in-json": lambda made, s: answer_json(made, {"body": f"a=b&refresh_token={s}"}),
    "event": lambda made, s: answer_event(made, json.dumps({"result": {"device_code": s}})),
    "event-lines": lambda made, s: answer_event(made, f'{{"a":1,\n"client_secret":\n"{s}"}}'),
    "event-endpoint": lambda made, s: answer_event(made, f"/messages?session_id={s}"),
    "gzip": gzipped,
    "multipart-json": lambda made, s: multipart(made, "config", json.dumps({"api_key": s})),
    "websocket": lambda made, s: websocket(made, json.dumps({"params": {"accessToken": s}})),
    "websocket-close": lambda made, s: setattr(made.websocket, "close_reason", f"token={s}"),
    "trailers": trailers,
    "comment": lambda made, s: setattr(made, "comment", f"used Bearer {s}"),
    "marked": lambda made, s: setattr(made, "marked", f"password={s}"),
    "metadata": lambda made, s: made.metadata.update(token=s),
    "metadata-deep": lambda made, s: made.metadata.update(mine={"list": [{"apiKey": s}]}),
    "metadata-text": lambda made, s: made.metadata.update(mine=f"https://x:{s}@h/"),
    "error": set_error,
    "connections": set_connections,
    "backup": backed_up,
    "kept-headers": lambda made, s: kept(
        made,
        asked={"host": "h", "headers": [[b"X-Custom-Jwt", s.encode()]], "body": b""},
        said=said(headers=[[b"Set-Cookie", b"a=" + s.encode()]]),
    ),
    "kept-body": lambda made, s: kept(
        made, asked={"host": "h", "headers": [], "body": json.dumps({"password": s}).encode()}
    ),
    "kept-chunks": split_over_chunks,
    "kept-gzip": lambda made, s: kept(
        made,
        said=said(
            gzip.compress(f'{{"password":"{s}"}}'.encode()),
            headers=[[b"Content-Encoding", b"gzip"], [b"Content-Length", b"1"]],
        ),
    ),
    "fetched-endpoint": lambda made, s: kept(made, fetched=fetched(f"/mcp?api_key={s}")),
    "fetched-page": lambda made, s: kept(
        made, fetched=fetched("/mcp", json.dumps({"description": f"use ghp_{s}"}).encode())
    ),
    "reason": lambda made, s: setattr(made.response, "reason", f"Bearer {s}"),
}  # fmt: skip


def under_names(kind: str, names: Sequence[str], plant: NamedPlant) -> dict[str, Plant]:
    return {f"{kind}-{name}": partial(_plant_under, plant, name) for name in names}


def _plant_under(plant: NamedPlant, name: str, made: HTTPFlow, secret: str) -> None:
    plant(made, name, secret)


def in_a_result(made: HTTPFlow, shape: str, secret: str) -> None:
    text = f"It says:\n{shape.format(secret, secret)}\nand more"
    answer_json(made, {"content": [{"text": text}]})


def in_a_comment(made: HTTPFlow, shape: str, secret: str) -> None:
    made.comment = shape.format(secret, secret)


def in_json(made: HTTPFlow, name: str, secret: str) -> None:
    answer_json(made, {"a": {name: secret}})


PLANTS |= {
    **under_names("header", HEADERS, request_headers),
    **under_names("json", NAMES, in_json),
    **under_names("form", FORM_NAMES, form),
    **under_names("multipart", NAMES, multipart),
    **under_names("text", SHAPES, in_a_result),
    **under_names("comment", SHAPES, in_a_comment),
}


def a_flow() -> HTTPFlow:
    made = tflow.twebsocketflow()
    assert made.response
    made.request = tutils.treq(content=b"{}", headers=Headers([]))
    made.response = tutils.tresp(content=b"{}", headers=Headers([]))
    return made


def secrets() -> Iterator[str]:
    """Yield different secrets, of which none is part of another."""
    for number in range(10_000):
        yield f"P{number:04}LANTED{number:04}Q"[:16].upper().ljust(16, "Z")


def spellings(secret: str) -> list[bytes]:
    plain = secret.encode()
    number = str(int(plain.hex(), 16)).encode()
    return [
        plain,
        plain.lower(),
        number,
        *(base64.b64encode(b"x" * n + plain)[4:20] for n in (0, 1, 2)),
    ]


@pytest.mark.parametrize("place", PLANTS)
def test_a_secret_is_found_in_every_place(place: str, tmp_path: Path) -> None:
    made, secret = a_flow(), "Q7H2K9PLANTED5X0"
    PLANTS[place](made, secret)
    write_flows(tmp_path / "before.flow", [made])
    before = (tmp_path / "before.flow").read_bytes()
    found = Scrubber().scrub([made])
    write_flows(tmp_path / "after.flow", [made])
    after = (tmp_path / "after.flow").read_bytes()
    assert before != after
    assert found >= 1
    assert [one for one in spellings(secret) if one in after] == []


def test_all_secrets_are_masked_at_once_and_the_file_is_private(tmp_path: Path) -> None:
    flows, planted = [], []
    for place, secret in zip(PLANTS, secrets(), strict=False):
        made = a_flow()
        PLANTS[place](made, secret)
        flows.append(made)
        planted += spellings(secret)
    assert len(PLANTS) > 100
    source, target = tmp_path / "source.flow", tmp_path / "target.flow"
    write_flows(source, flows)
    target.touch(0o644)
    assert main(["scrub", str(source), str(target)]) == 0
    after = target.read_bytes()
    assert [one for one in planted if one in after] == []
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.flow", "target.flow"]
    once = [made.get_state() for made in read_flows(target)]
    assert main(["scrub", str(target), str(target)]) == 0
    assert [made.get_state() for made in read_flows(target)] == once
