"""Secrets are removed from recordings, wherever they are, and everything else stays."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.flow import Error
from mitmproxy.http import Headers, HTTPFlow, Response
from mitmproxy.test import tflow, tutils
from mitmproxy.websocket import WebSocketMessage
from wsproto.frame_protocol import Opcode

from mcp_tool_filter.rooms.recordings.flow_dump import KEY, read_flows, write_flows
from mcp_tool_filter.rooms.recordings.scrub import Masks, Scrubber
from mcp_tool_filter.rooms.secrets.places import Secret
from tests.proxy import REPOSITORY
from tests.rows import each_row

RECORDINGS = sorted((REPOSITORY / "recordings").glob("*.flow"))

TOKEN = "sk-1234567890abcdefghij"

CUT_SHORT = "compressed data cut short, or with something behind it"

SESSION = "5f1c9f3e8e0b4d0aa7f3b0c3d2a1e9f8"


def flow(
    *,
    path: str = "/mcp",
    asks: bytes = b"{}",
    says: bytes = b"{}",
    request: dict[str, str] | None = None,
    response: dict[str, str] | None = None,
) -> HTTPFlow:
    return tflow.tflow(
        req=tutils.treq(path=path.encode(), content=asks, headers=fields(request)),
        resp=tutils.tresp(content=says, headers=fields(response)),
    )


def fields(given: dict[str, str] | None) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in (given or {}).items()])


def answer_of(made: HTTPFlow) -> Response:
    assert made.response
    return made.response


def scrubbed(*flows: HTTPFlow, **options: Any) -> list[HTTPFlow]:
    Scrubber(**options).scrub(flows)
    return list(flows)


def written(flows: list[HTTPFlow], folder: Path) -> bytes:
    write_flows(folder / "written.flow", flows)
    return (folder / "written.flow").read_bytes()


def test_schemes_of_credentials_and_names_of_cookies_stay() -> None:
    asked = {"Cookie": "a=1; session=abcdefabcdef", "Authorization": f"Bearer {TOKEN}"}
    attributes = "Path=/; HttpOnly; SameSite=Lax"
    said = {"Set-Cookie": f"session=abcdefabcdef; {attributes}"}
    [made] = scrubbed(flow(request=asked, response=said))
    assert made.request.headers["authorization"] == "Bearer scrubbed-3-------------"
    assert made.request.headers["cookie"] == "a=x; session=scrubbed-2--"
    assert answer_of(made).headers["set-cookie"] == f"session=scrubbed-2--; {attributes}"


def test_a_session_id_is_scrubbed_alike_in_all_its_flows() -> None:
    """The older transport names its sessions in URLs, in an event first."""
    event = f"event: endpoint\r\ndata: /messages/?session_id={SESSION}\r\n\r\n".encode()
    first = flow(path="/sse", says=event)
    second = flow(path=f"/messages/?session_id={SESSION}&a=1")
    scrubbed(first, second)
    endpoint = answer_of(first).content or b""
    assert SESSION.encode() not in endpoint
    assert second.request.path.partition("&")[0].encode() in endpoint


def test_different_sessions_stay_different_also_from_scrubbed_ones() -> None:
    clean = scrubbed(flow(request={"Mcp-Session-Id": SESSION}))
    fresh = [flow(request={"Mcp-Session-Id": SESSION[::-1] + end}) for end in "abca"]
    ids = [one.request.headers["mcp-session-id"].rstrip("-") for one in scrubbed(*clean, *fresh)]
    assert ids == [f"scrubbed-{number}" for number in (1, 2, 3, 4, 2)]


def test_named_fields_and_headers_are_masked_too() -> None:
    [made] = scrubbed(
        flow(asks=b'{"iban":"DE00","pin" : "a\\"b", "n":1}', request={"X-Who": "somebody else"}),
        fields=frozenset({"iban", "pin"}),
        headers=frozenset({b"x-who"}),
    )
    assert made.request.content == b'{"iban":"xxxx","pin" : "xxxx", "n":1}'
    assert made.request.headers["x-who"] == "scrubbed-1---"


def test_tool_definitions_keep_parameters_with_secret_names() -> None:
    definition = b'{"properties":{"token":{"type":"string"},"password":{"type":"string"}}}'
    [made] = scrubbed(flow(says=definition))
    assert answer_of(made).content == definition


@given(
    secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
    around=st.text(max_size=20),
)
def test_scrubbing_twice_changes_nothing_and_lengths_stay(secret: str, around: str) -> None:
    body = f"{around}{secret}{around}".encode()
    made = flow(request={"X-Api-Key": secret}, asks=body)
    scrubbed(made)
    once = made.get_state()
    scrubbed(made)
    assert made.get_state() == once
    assert len(made.request.data.content or b"") == len(body)


@pytest.mark.parametrize("recording", RECORDINGS, ids=attrgetter("stem"))
def test_scrubbing_a_real_session_removes_only_its_secret(tmp_path: Path, recording: Path) -> None:
    """Put a fresh session id or token where the mask is: scrubbing gives the recording again."""

    def fresh(mask: re.Match[bytes]) -> bytes:
        return SESSION.encode()[: len(mask[0])].ljust(len(mask[0]), b"7")

    dirty, clean = tmp_path / "dirty.flow", recording.read_bytes()
    for raw in (clean, re.sub(rb"scrubbed-1-+", fresh, clean)):
        dirty.write_bytes(raw)
        assert written(scrubbed(*read_flows(dirty)), tmp_path) == clean


def test_lengths_are_right_where_a_secret_had_escapes() -> None:
    """Its mask is as long as the secret itself, so that it is the same wherever it stands."""
    body = rb'{"accessToken":"\u0061bcdefghijkl\/mnop","z":1}'
    length = str(len(body))
    path = "/a?access_token=abcdefghijkl%2Fmnop"
    made = flow(path=path, says=body, response={"Content-Length": length})
    headers = [[b"Content-Length", length.encode()]]
    kept(made, said=said(body[:20], body[20:30], body[30:31], body[31:], headers=headers))
    scrubbed(made)
    clean = b'{"accessToken":"scrubbed-1-------","z":1}'
    assert made.request.path == "/a?access_token=scrubbed-1-------"
    assert answer_of(made).raw_content == clean
    assert answer_of(made).headers["content-length"] == str(len(clean))
    now = made.metadata[KEY]["said"]
    assert now["headers"] == [[b"Content-Length", b"%d" % len(clean)]]
    assert now["size"] == len(clean)
    times, pieces = zip(*now["chunks"], strict=True)
    assert times == (0.0, 1.0, 2.0, 3.0)
    assert (pieces[0], b"".join(pieces)) == (clean[:20], clean)


def test_a_password_of_basic_authorization_is_found_elsewhere() -> None:
    credential = base64.b64encode(b"bob:correct horse 7 battery").decode()
    made = flow(request={"Authorization": f"Basic {credential}"}, says=b"correct horse 7 battery!")
    scrubbed(made)
    assert b"horse" not in (answer_of(made).content or b"")


@pytest.mark.parametrize(
    ("coding", "body", "why"),
    [
        ("x-own", b"zzz", "a content coding that is not accepted"),
        ("gzip", b"zzz", "not valid gzip"),
        ("gzip", gzip.compress(b"{}")[:-3], CUT_SHORT),
        ("identity", b"\x89PNG\0\0", "binary data"),
    ],
)  # fmt: skip
def test_unreadable_parts_are_named_and_kept(coding: str, body: bytes, why: str) -> None:
    made, socket = flow(response={"Content-Encoding": coding}), tflow.twebsocketflow()
    assert socket.websocket
    answer_of(made).raw_content = body
    socket.websocket.messages[0].content = b"\xff\xfe\0"
    scrubber = Scrubber()
    scrubber.scrub([made, socket])
    message = "flow 2 (GET), a WebSocket message: binary data"
    assert scrubber.unread == [f"flow 1 (GET), answer: {why}", message]
    assert answer_of(made).raw_content == body


def test_named_fields_do_not_match_parts_of_a_flow() -> None:
    names = ["type", "id", "host", "method", "version", "proxy_mode", "transport_protocol", "msg"]
    made = flow(asks=b'{"type": "hidden", "id": "hidden"}')
    before = made.get_state()
    scrubbed(made, fields=frozenset(names))
    assert made.request.content == b'{"type": "xxxxxx", "id": "xxxxxx"}'
    assert made.get_state()["client_conn"] == before["client_conn"]


@pytest.mark.parametrize(
    ("secret", "is_found"),
    [("k7-hunter2", True), ("2026-11-18", False), ("not-required", False), ("hunter2", False)],
)
def test_a_secret_is_masked_everywhere_unless_it_may_be_a_word(secret: str, is_found: bool) -> None:
    [made] = scrubbed(flow(request={"X-Api-Key": secret}, says=f"<{secret}>".encode()))
    assert (secret.encode() not in (answer_of(made).content or b"")) == is_found
    assert secret not in made.request.headers["x-api-key"]


# Masks: as long as the secret, different for different ones, and known again as masks.


def mask(masks: Masks, value: str, size: int | None = None) -> str:
    return masks.of(Secret(0, size or len(value), value))


def chosen(*values: str) -> Masks:
    return Masks(dict.fromkeys(values, False))


@each_row("length", [1, 2, 3, 5, 9, 10, 11, 40])
def test_masks_are_as_long_as_their_secrets_and_differ_if_possible(length: int) -> None:
    values = [char * length for char in "abcdefghijklm"]
    masks = chosen(*values)
    found = [mask(masks, value) for value in values]
    assert {len(one) for one in found} == {length}
    assert len(set(found)) == (len(values) if length > 2 else 1)


def test_existing_masks_stay_and_their_numbers_are_not_reused() -> None:
    masks = chosen("scrubbed-7----", "xxxxx", "fresh-secret-1", "short")
    assert mask(masks, "scrubbed-7----") == "scrubbed-7----"
    assert mask(masks, "fresh-secret-1").startswith("scrubbed-8")
    assert mask(masks, "short") == "x2xxx"
    assert masks.secrets == ["fresh-secret-1", "short"]


def test_only_a_short_mask_is_padded_where_the_secret_had_escapes() -> None:
    masks = chosen('a"b', "a-long/secret")
    assert mask(masks, 'a"b', 4) == "xxxx"
    assert mask(masks, "a-long/secret", 15) == "scrubbed-2---"


# Secrets planted in every place that a flow has: none is left in the file, in no spelling.
# (What is a secret within a text: tests/rooms/secrets.)

type Plant = Callable[[HTTPFlow, str], None]

type NamedPlant = Callable[[HTTPFlow, str, str], None]


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
    answer_of(made).content = json.dumps(body).encode()
    answer_of(made).headers["content-type"] = "application/json"


def answer_event(made: HTTPFlow, data: str) -> None:
    answer_of(made).headers["content-type"] = "text/event-stream"
    answer_of(made).content = f"event: message\nid: 1\ndata: {data}\n\n".encode()


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


def said(*chunks: bytes, headers: Sequence[Sequence[bytes]] = ()) -> dict[str, Any]:
    pieces = [[float(number), chunk] for number, chunk in enumerate(chunks)]
    fields = [list(one) for one in headers]
    size = sum(map(len, chunks))
    given = {"status": 200, "headers": fields, "at": 1.0, "chunks": pieces, "ended": None}
    return {**given, "size": size, "left_out": 0}


def fetched(endpoint: str, page: bytes = b"{}") -> dict[str, Any]:
    given = {"transport": "streamable", "revision": "r", "server": ["s", "1"], "sessions": False}
    return {**given, "endpoint": endpoint, "pages": [page]}


def gzipped(made: HTTPFlow, secret: str) -> None:
    answer_of(made).headers["content-encoding"] = "gzip"
    answer_of(made).raw_content = gzip.compress(json.dumps({"api_key": secret}).encode())


def websocket(made: HTTPFlow, text: str) -> None:
    assert made.websocket
    made.websocket.messages.append(WebSocketMessage(Opcode.TEXT, True, text.encode()))


def trailers(made: HTTPFlow, secret: str) -> None:
    made.request.trailers = Headers([(b"x-api-key", secret.encode())])


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
    kept(made, said=said(body[:30], body[30:40], body[40:]))


def kept_headers(made: HTTPFlow, secret: str) -> None:
    asked = {"host": "h", "headers": [[b"X-Custom-Jwt", secret.encode()]], "body": b""}
    kept(made, asked=asked, said=said(headers=[[b"Set-Cookie", b"a=" + secret.encode()]]))


def kept_gzip(made: HTTPFlow, secret: str) -> None:
    headers = [[b"Content-Encoding", b"gzip"], [b"Content-Length", b"1"]]
    body = gzip.compress(b'{"password":"%b"}' % secret.encode())
    kept(made, said=said(body, headers=headers))


PLANTS: dict[str, Plant] = {
    "path": lambda made, s: setattr(made.request, "path", f"/mcp?api_key={s}&x=1"),
    "authority": lambda made, s: setattr(made.request, "authority", f"user:{s}@host"),
    "location": lambda made, s: request_headers(made, "Location", f"https://h/cb?code={s}"),
    "referer": lambda made, s: request_headers(made, "Referer", f"https://h/#access_token={s}"),
    "websocket-protocol": lambda made, s: request_headers(
        made, "Sec-WebSocket-Protocol", f"mcp, base64url.bearer.authorization.k8s.io.{s}"
    ),
    "json-number": lambda made, s: answer_json(made, {"otp": int(s.encode().hex(), 16)}),
    "json-key": lambda made, s: answer_json(made, {f"ghp_{s}": 1}),
    "event": lambda made, s: answer_event(made, json.dumps({"result": {"device_code": s}})),
    "gzip": gzipped,
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
    "kept-headers": kept_headers,
    "kept-chunks": split_over_chunks,
    "kept-gzip": kept_gzip,
    "fetched-endpoint": lambda made, s: kept(made, fetched=fetched(f"/mcp?api_key={s}")),
    "fetched-page": lambda made, s: kept(
        made, fetched=fetched("/mcp", b'{"description":"use ghp_%b"}' % s.encode())
    ),
    "reason": lambda made, s: setattr(made.response, "reason", f"Bearer {s}"),
}  # fmt: skip


def under_names(kind: str, names: Sequence[str], plant: NamedPlant) -> dict[str, Plant]:
    def under(name: str, made: HTTPFlow, secret: str) -> None:
        plant(made, name, secret)

    return {f"{kind}-{name}": partial(under, name) for name in names}


def in_a_result(made: HTTPFlow, shape: str, secret: str) -> None:
    text = f"It says:\n{shape.format(secret, secret)}\nand more"
    answer_json(made, {"content": [{"text": text}]})


def in_json(made: HTTPFlow, name: str, secret: str) -> None:
    answer_json(made, {"a": {name: secret}})


PLANTS |= {
    **under_names("header", HEADERS, request_headers),
    **under_names("json", ["client_secret", "idToken"], in_json),
    **under_names("form", ["code", "assertion", "user[password]", "session_id", "id_token"], form),
    **under_names("multipart", ["client_secret", "password"], multipart),
    **under_names("text", SHAPES, in_a_result),
}


def a_flow() -> HTTPFlow:
    made, plain = tflow.twebsocketflow(), flow()
    made.request, made.response = plain.request, plain.response
    return made


def spellings(secret: str) -> list[bytes]:
    plain = secret.encode()
    encoded = [base64.b64encode(b"x" * n + plain)[4:20] for n in range(3)]
    return [plain, plain.lower(), str(int(plain.hex(), 16)).encode(), *encoded]


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


LONG = "ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5"
PASSWORD = "hunter2secret"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@each_row(("secret", "text"), [
    (encoded(f"password={PASSWORD}"), f"data:text/plain;base64,{encoded(f'password={PASSWORD}')}"),
    (encoded(LONG), f"see data:;base64,{encoded(LONG)} for more"),
    (PASSWORD, f"data:,password%3D{PASSWORD}"), ("%5FaB3dE5gH7j", LONG.replace("_", "%5F")),
    ("%255FaB3dE5gH7j", f"x {LONG.replace('_', '%255F')} y"),
    (PASSWORD, f"<password><![CDATA[{PASSWORD}]]></password>"),
    (f"{PASSWORD}<b>", f"<a:password>\n<![CDATA[{PASSWORD}<b>]]></a:password>"),
    (PASSWORD, f"<a><password><![CDATA[{PASSWORD}"),
    (PASSWORD, f'<add key="ApiKey" value="{PASSWORD}"/>'),
    (PASSWORD, f'<add value="{PASSWORD}" key="ApiKey"/>'),
    (PASSWORD, f"<set ApiKey = '{PASSWORD}'/>"),
    ("NRAK-ABCDEFGHIJKLMNOPQRSTUVWXYZA", "x NRAK-ABCDEFGHIJKLMNOPQRSTUVWXYZA y"),
    ("0123456789abcdef01234567-abababab", f"v1.0-0123456789abcdef01234567-{'ab' * 73}"),
    ("ABC-DEF1234ghIkl", "api.telegram.org/bot123456:ABC-DEF1234ghIkl-zyx57W2v1u123ew11/getMe"),
    ("a8f5f167f44f4964", "call it with key=a8f5f167f44f4964e6c998dee827110c, please"),
])  # fmt: skip
def test_a_secret_is_found_however_it_is_wrapped(secret: str, text: str) -> None:
    body = json.dumps({"text": text}).encode()
    [made] = scrubbed(flow(asks=text.encode(), says=body))
    assert secret not in str(made.request.content)
    assert secret not in json.loads(answer_of(made).content or b"")["text"]


def test_names_that_are_not_always_secret_keep_their_ordinary_values() -> None:
    text = b"key=value, code=404, sort_key=created_at, auth=required"
    [made] = scrubbed(flow(asks=text))
    assert made.request.content == text


def test_a_secret_in_the_base64_of_a_name_and_in_a_path_is_masked() -> None:
    name = encoded(f"file:///x?token={LONG}")
    [made] = scrubbed(flow(path="/s/Zk3v9QpX7dAb3/mcp", request={"Mcp-Name": f"=?base64?{name}?="}))
    assert name not in made.request.headers["mcp-name"]
    assert (made.request.path[:3], made.request.path[-4:]) == ("/s/", "/mcp")
    assert "Zk3v9QpX7dAb3" not in made.request.path


@pytest.mark.parametrize("disposition", [
    'form-data; name="password"', "form-data; name*=UTF-8''pass%77ord",
    "form-data; name='password'", 'form-data;\r\n name="password"', "form-data;NAME = password",
    'form-data; name="user[password]"',
    'form-data; name="x"; name="password"', f'form-data; name="password={PASSWORD}"',
])  # fmt: skip
def test_the_name_of_a_part_can_be_written_in_many_ways(disposition: str) -> None:
    part = f"--B\r\nContent-Disposition: {disposition}\r\n\r\n{PASSWORD}\r\n--B--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    [made] = scrubbed(flow(asks=part.encode(), request=kind))
    assert PASSWORD.encode() not in (made.request.content or b"").replace(b"\r\n", b"")


@pytest.mark.parametrize("at", [3, 7, 24, len(LONG) - 1])
@pytest.mark.parametrize("event", ['{"params":{"delta":"%s"}}', "%s"])
def test_a_secret_that_events_cut_is_masked_in_each(event: str, at: int) -> None:
    """Models say a token in pieces; the second half alone has no shape."""
    said = "".join(f"data: {event % part}\n\n" for part in (LONG[:at], LONG[at:]))
    made = flow(says=said.encode(), response={"Content-Type": "text/event-stream"})
    scrubbed(made)
    for part in (LONG[:at], LONG[at:]):
        assert f'{part}"' not in str(answer_of(made).content)
        assert f" {part}\\n" not in str(answer_of(made).content)
