"""No secret is left in a recording, and the rest of it is what it was."""

from __future__ import annotations

import base64
import gzip
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.http import Headers, HTTPFlow
from mitmproxy.test import tflow, tutils

from mcp_tool_filter.adapters.recordings.flow_dump import KEY, read_flows, write_flows
from mcp_tool_filter.adapters.recordings.scrub import Scrubber
from tests.proxy import REPOSITORY

RECORDINGS = sorted((REPOSITORY / "recordings").glob("*.flow"))
TOKEN = "sk-1234567890abcdefghij"
CUT_SHORT = "compressed data cut short, or with something behind it"
SESSION = "5f1c9f3e8e0b4d0aa7f3b0c3d2a1e9f8"


def flow(
    *,
    path: str = "/mcp",
    asks: bytes = b"{}",
    says: bytes = b"{}",
    kept: dict[str, Any] | None = None,
    request: dict[str, str] | None = None,
    response: dict[str, str] | None = None,
) -> HTTPFlow:
    made = tflow.tflow(
        req=tutils.treq(path=path.encode(), content=asks, headers=fields(request)),
        resp=tutils.tresp(content=says, headers=fields(response)),
    )
    if kept:
        made.metadata[KEY] = kept
    return made


def fields(given: dict[str, str] | None) -> Headers:
    return Headers([(name.encode(), value.encode()) for name, value in (given or {}).items()])


def scrubbed(*flows: HTTPFlow, **options: Any) -> list[HTTPFlow]:
    Scrubber(**options).scrub(flows)
    return list(flows)


def written(flows: list[HTTPFlow], folder: Path) -> bytes:
    write_flows(folder / "written.flow", flows)
    return (folder / "written.flow").read_bytes()


@pytest.mark.parametrize(
    "header",
    ["Authorization", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "Mcp-Session-Id"],
)
def test_a_credential_is_masked_wherever_it_stands(tmp_path: Path, header: str) -> None:
    asks = f'{{"q":"{TOKEN}"}}'.encode()
    kept = {
        "asked": {"host": "h", "headers": [[header.encode(), TOKEN.encode()]], "body": asks},
        "said": {"headers": [], "chunks": [[1.0, TOKEN[:5].encode()], [2.0, TOKEN[5:].encode()]]},
    }
    made = flow(request={header: TOKEN}, asks=asks, says=TOKEN.encode(), kept=kept)
    assert TOKEN.encode() not in written(scrubbed(made), tmp_path)
    assert [len(data) for _, data in made.metadata[KEY]["said"]["chunks"]] == [5, 18]


def test_the_scheme_of_a_credential_stays() -> None:
    [made] = scrubbed(flow(request={"Authorization": f"Bearer {TOKEN}"}))
    assert made.request.headers["authorization"] == "Bearer scrubbed-1-------------"


def test_cookies_lose_their_values_and_keep_their_names() -> None:
    [made] = scrubbed(
        flow(
            request={"Cookie": "a=1; session=abcdefabcdef"},
            response={"Set-Cookie": "session=abcdefabcdef; Path=/; HttpOnly; SameSite=Lax"},
        )
    )
    assert made.request.headers["cookie"] == "a=x; session=scrubbed-2--"
    assert made.response
    assert made.response.headers["set-cookie"] == (
        "session=scrubbed-2--; Path=/; HttpOnly; SameSite=Lax"
    )


def test_a_session_id_is_scrubbed_alike_in_all_its_flows() -> None:
    """The older transport names its sessions in URLs, in an event first."""
    event = f"event: endpoint\r\ndata: /messages/?session_id={SESSION}\r\n\r\n".encode()
    first = flow(path="/sse", says=event)
    second = flow(path=f"/messages/?session_id={SESSION}&a=1")
    scrubbed(first, second)
    assert first.response
    endpoint = first.response.content or b""
    assert SESSION.encode() not in endpoint
    assert second.request.path.partition("&")[0].encode() in endpoint


def test_different_sessions_stay_different() -> None:
    flows = scrubbed(*[flow(request={"Mcp-Session-Id": SESSION + end}) for end in "abca"])
    ids = [one.request.headers["mcp-session-id"] for one in flows]
    assert [ids.index(id) for id in ids] == [0, 1, 2, 0]


def test_scrubbed_and_new_flows_do_not_share_masks() -> None:
    [clean] = scrubbed(flow(request={"Mcp-Session-Id": SESSION}))
    fresh = flow(request={"Mcp-Session-Id": SESSION[::-1]})
    ids = {one.request.headers["mcp-session-id"] for one in scrubbed(clean, fresh)}
    assert {id.rstrip("-") for id in ids} == {"scrubbed-1", "scrubbed-2"}


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
    assert made.response
    assert made.response.content == definition


def test_a_compressed_body_is_scrubbed_too() -> None:
    made = flow(asks=b"{}", request={"Content-Encoding": "gzip", "Authorization": TOKEN})
    made.request.content = f'{{"password":"hunter2","q":"{TOKEN}"}}'.encode()
    scrubbed(made)
    assert made.request.content == b'{"password":"xxxxxxx","q":"scrubbed-1-------------"}'
    assert "content-encoding" not in made.request.headers


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
def test_a_clean_recording_stays_the_same_byte_for_byte(tmp_path: Path, recording: Path) -> None:
    assert written(scrubbed(*read_flows(recording)), tmp_path) == recording.read_bytes()


@pytest.mark.parametrize("recording", RECORDINGS, ids=attrgetter("stem"))
def test_scrubbing_a_real_session_removes_only_its_secret(tmp_path: Path, recording: Path) -> None:
    """Put a fresh session id or token where the mask is: scrubbing gives the recording again."""
    masks = re.findall(rb"scrubbed-1-+", recording.read_bytes())
    secrets = {mask: (b"5f1c9f3e8e0b4d0aa7f3b0c3d2a1e9f8"[: len(mask)]) for mask in set(masks)}
    dirty = re.sub(
        rb"scrubbed-1-+", lambda found: secrets[found[0]].ljust(len(found[0]), b"7"),
        recording.read_bytes(),
    )  # fmt: skip
    (tmp_path / "dirty.flow").write_bytes(dirty)
    assert written(scrubbed(*read_flows(tmp_path / "dirty.flow")), tmp_path) == (
        recording.read_bytes()
    )


def test_lengths_are_right_where_a_secret_had_escapes() -> None:
    """Its mask is as long as the secret itself, so that it is the same wherever it stands."""
    body = rb'{"accessToken":"\u0061bcdefghijkl\/mnop","z":1}'
    pieces = [body[:20], body[20:30], body[30:31], body[31:]]
    kept = {
        "asked": {"host": "h", "headers": [], "body": b""},
        "said": {
            "headers": [[b"Content-Length", b"%d" % len(body)]],
            "chunks": [[float(at), piece] for at, piece in enumerate(pieces)],
            "size": len(body),
        },
    }
    made = flow(
        path="/a?access_token=abcdefghijkl%2Fmnop",
        says=body,
        response={"Content-Length": str(len(body))},
        kept=kept,
    )
    scrubbed(made)
    clean = b'{"accessToken":"scrubbed-1-------","z":1}'
    assert made.request.path == "/a?access_token=scrubbed-1-------"
    assert made.response
    assert made.response.raw_content == clean
    assert made.response.headers["content-length"] == str(len(clean))
    said = made.metadata[KEY]["said"]
    assert said["headers"] == [[b"Content-Length", b"%d" % len(clean)]]
    assert said["size"] == len(clean)
    assert [at for at, _ in said["chunks"]] == [0.0, 1.0, 2.0, 3.0]
    assert b"".join(piece for _, piece in said["chunks"]) == clean
    assert next(piece for _, piece in said["chunks"]) == clean[:20]


def test_a_password_of_basic_authorization_is_found_elsewhere() -> None:
    credential = base64.b64encode(b"bob:correct horse 7 battery").decode()
    made = flow(request={"Authorization": f"Basic {credential}"}, says=b"correct horse 7 battery!")
    scrubbed(made)
    assert made.response
    assert b"horse" not in (made.response.content or b"")


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
    made = flow(response={"Content-Encoding": coding})
    assert made.response
    made.response.raw_content = body
    scrubber = Scrubber()
    scrubber.scrub([made])
    assert scrubber.unread == [f"flow 1 (GET), answer: {why}"]
    assert made.response.raw_content == body


def test_an_unread_part_is_named_with_its_flow() -> None:
    made = tflow.twebsocketflow()
    assert made.websocket
    made.websocket.messages[0].content = b"\xff\xfe\0"
    scrubber = Scrubber()
    scrubber.scrub([flow(), made])
    assert scrubber.unread == ["flow 2 (GET), a WebSocket message: binary data"]


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
def test_a_secret_is_masked_everywhere_unless_it_could_be_a_word(
    secret: str, is_found: bool
) -> None:
    [made] = scrubbed(flow(request={"X-Api-Key": secret}, says=f"<{secret}>".encode()))
    assert made.response
    assert (secret.encode() not in (made.response.content or b"")) == is_found
    assert secret not in made.request.headers["x-api-key"]
