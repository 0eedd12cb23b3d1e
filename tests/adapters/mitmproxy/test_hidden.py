"""Flows never contain tokens; they are only sent over the wire."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from mitmproxy import hooks
from mitmproxy.addons.save import Save

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from tests.adapters.mitmproxy.filtered import filtered
from tests.adapters.mitmproxy.test_logins import fetched
from tests.cli.launched import launched
from tests.mcp_upstream import RESULT, Respond, saying
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import SCRIPT, RunningProxy, RunningTool, proxy
from tests.proxy import tool as run_tool
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, h2_client, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, TIMEOUT, RawRequest, answer, chunk

pytestmark = pytest.mark.usefixtures("own_config_folder")
CLIENT = "http://127.0.0.1:49152/callback"
FORM = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"
CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read_file"}}'
SECRET = "client-secret-4711"
PLACES: dict[str, dict[str, Any]] = {
    "stands for the authorization server": {"elsewhere": True},
    "the way back leads through us": {"sends_issuer": True},
    "login paths go to the upstream": {
        "has_resource_metadata": False,
        "has_server_metadata": False,
        "binds_audience": False,
        "challenge": "Bearer",
    },
}


class Looking:
    """An addon behind ours; ``seen`` is all that it can see."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def look(self, flow: Any) -> None:
        self.seen.append(repr(flow.get_state()))

    requestheaders = request = responseheaders = error = look

    def response(self, flow: Any) -> None:
        self.look(flow)
        flow.response.headers["x-added"] = "by a script"


async def log_in(client: RawClient) -> list[str]:
    """Log in as a client does, call, and renew; return every secret of it."""
    assert (await client.ask(post(CALL))).status == 401
    asked = {"redirect_uris": [CLIENT], "client_secret": SECRET}
    registered = await client.ask(post(json.dumps(asked).encode(), path="/register", headers=JSON))
    assert json.loads(registered.body)["client_secret"] == SECRET, registered
    verifier = secrets.token_urlsafe(32)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    who = {"client_id": "client-1", "redirect_uri": CLIENT, "resource": "http://localhost/mcp"}
    how = {"state": "mine", "code_challenge": challenge, "code_challenge_method": "S256"}
    url = "http://localhost/authorize?" + urlencode(who | how)
    codes: list[str] = []
    while not url.startswith(CLIENT):
        url = await visit(client, url)
        codes += parse_qs(urlsplit(url).query).get("code", [])
    form = {"grant_type": "authorization_code", "code": codes[-1], "code_verifier": verifier}
    first = await ask_token(client, who | form)
    again = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
    second = await ask_token(client, who | again)
    bearer = MCP_HEADERS + b"Authorization: Bearer %b\r\n" % second["access_token"].encode()
    got = await client.ask(post(CALL, headers=bearer))
    assert "result" in json.loads(got.body), got
    tokens = [one[name] for one in (first, second) for name in ("access_token", "refresh_token")]
    return [SECRET, verifier, *codes, *tokens]


async def visit(client: RawClient, url: str) -> str:
    """Follow one redirect, wherever it leads."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}"
    if parts.netloc == "localhost":
        (there,) = (await client.ask(get(path=target))).all("location")
        return there
    async with raw_client(parts.port or 0) as other:
        host = f"Host: {parts.netloc}\r\n".encode()
        (there,) = (await other.ask(get(path=target, headers=host))).all("location")
    return there


async def ask_token(client: RawClient, asked: dict[str, str]) -> dict[str, str]:
    got: Answer = await client.ask(post(urlencode(asked).encode(), path="/token", headers=FORM))
    assert got.status == 200, got
    said: dict[str, str] = json.loads(got.body)
    return said


@asynccontextmanager
async def shown_by(
    addon: ToolFilter, to: OAuthUpstream, home: Path, **options: Any
) -> AsyncIterator[tuple[RawClient, list[str]]]:
    """Open a client; what has been seen and recorded is there at the end."""
    recording, looking = home / "all.flow", Looking()
    given = {"endpoint": ["/mcp"], "save_stream_file": str(recording), **options}
    async with (
        proxy(addon, looking, Save(), to=to.origin, home=home, **given) as it,
        raw_client(it.port) as client,
    ):
        yield client, looking.seen
    looking.seen.append(recording.read_bytes().decode("latin-1"))


@pytest.mark.parametrize("place", PLACES)
async def test_a_flow_has_masks_for_all_secrets_of_a_login(tmp_path: Path, place: str) -> None:
    """Also if a script changes the answers."""
    with oauth_upstream(**PLACES[place]) as upstream:
        addon = ToolFilter(fetch=fetched)
        async with shown_by(addon, upstream, tmp_path) as (client, seen):
            found = [*await log_in(client), *upstream.all_secrets()]
    shown = "".join(seen)
    assert "masked-" in shown
    assert "grant_type=refresh_token" in shown  # what is no secret can be seen
    assert "x-added" in shown
    assert [one for one in found if one in shown] == []


async def test_an_option_shows_the_secrets(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        addon, options = ToolFilter(fetch=fetched), {"show_secrets": ["true"]}
        async with shown_by(addon, upstream, tmp_path, **options) as (client, seen):
            found = await log_in(client)
    assert [one for one in found if one not in seen[-1]] == []


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("host", ["launcher", "mitmdump", "mitmweb"])
async def test_no_host_shows_a_login(tmp_path: Path, host: str) -> None:
    """Neither in what it prints, nor in a recording, nor in mitmweb."""
    recording, web = tmp_path / "all.flow", ""
    with oauth_upstream(sends_issuer=True) as upstream:
        hosted: AbstractAsyncContextManager[RunningTool]
        if host == "launcher":
            args = ("--upstream", upstream.url, "--deny", "^x", "-vv", "--record", str(recording))
            hosted = launched(*args, home=tmp_path)
        else:
            mode = ("--mode", f"reverse:{upstream.origin}", "-w", str(recording), "-v")
            own = "web_password=let-me-in" if host == "mitmweb" else "flow_detail=4"
            sets = ("--set", "deny=^x", "--set", "endpoint=/mcp", "--set", own)
            hosted = run_tool(host, "-s", SCRIPT, *mode, *sets, home=tmp_path)
        async with hosted as it:
            await it.listening()
            async with raw_client(it.port) as client:
                found = [*await log_in(client), *upstream.all_secrets()]
            if host == "mitmweb":
                port = re.search(r"Web server listening at http://127.0.0.1:(\d+)", it.stdout)
                assert port
                web = await asyncio.to_thread(all_in_mitmweb, f"http://127.0.0.1:{port[1]}")
            it.interrupt()
            await it.exit_code()
    shown = it.stdout + it.stderr + web + recording.read_bytes().decode("latin-1")
    assert "masked-" in shown
    assert [one for one in found if one in shown] == []


def all_in_mitmweb(at: str) -> str:
    """Return its list of flows, and each body that it shows."""

    def read(path: str) -> str:
        asked = urllib.request.Request(at + path, headers={"Authorization": "Bearer let-me-in"})
        with urllib.request.urlopen(asked, timeout=TIMEOUT) as got:
            return str(got.read().decode("latin-1"))

    flows = read("/flows")
    parts = [
        read(f"/flows/{flow['id']}/{message}/content.data")
        for flow in json.loads(flows)
        for message in ("request", "response")
    ]
    assert any("grant_type" in part for part in parts)
    return flows + "".join(parts)


@asynccontextmanager
async def recorded(
    to: Path, respond: Respond, *addons: object, **options: Any
) -> AsyncIterator[tuple[RunningProxy, RawClient]]:
    """Open a proxy that records its flows, and a client."""
    given = {"save_stream_file": str(to), **options}
    async with filtered(to.parent, *addons, Save(), respond=respond, **given) as it:
        yield it.proxy, it.client


EVENT = b"data: " + RESULT + b"\n\n"
KEY = b"X-Api-Key: from-the-client\r\nCookie: sid=s-1; theme=dark\r\n"


async def test_the_upstream_gets_what_the_client_sent(tmp_path: Path) -> None:
    """And the user's own headers; a flow has masks for both. A script may change it."""

    class Changing:
        def request(self, flow: Any) -> None:
            flow.request.headers["x-added"] = "by a script"

    heard: list[bytes] = []

    async def respond(request: RawRequest, peer: Any) -> None:
        heard.append(request.head)
        await saying(RESULT)(request, peer)

    recording = tmp_path / "all.flow"
    ours = ["X-Tenant-Token: t-0815"]
    async with recorded(recording, respond, Changing(), upstream_headers=ours) as (_, client):
        target = "/mcp?session_id=s-9&access_token=in-the-url"
        await client.ask(post(CALL, path=target, headers=MCP_HEADERS + KEY))
        await client.ask(post(CALL))
    first, second = heard
    own = (b"X-Api-Key: from-the-client", b"sid=s-1; theme=dark", target.encode())
    for sent in (*own, b"x-added: by a script"):
        assert sent in first
    assert b"X-Tenant-Token: t-0815" in second
    one, _ = read_flows(recording)
    assert "session_id=s-9" in one.request.path
    shown = recording.read_bytes()
    for secret in (b"from-the-client", b"s-1;", b"in-the-url", b"t-0815"):
        assert secret not in shown


async def test_a_client_that_sends_a_mask_gets_no_token_for_it(tmp_path: Path) -> None:
    """A client that has seen the mask of another one's token could let the upstream echo it."""
    heard: list[bytes] = []
    mask = b""

    async def respond(request: RawRequest, peer: Any) -> None:
        heard.append(request.head + request.body)
        echo = b"\r\nSet-Cookie: a=%b\r\n" % mask if mask else b"\r\n"
        await peer.say(answer(RESULT).replace(b"\r\n", echo, 1))

    recording = tmp_path / "all.flow"
    async with recorded(recording, respond) as (it, client):
        await client.ask(post(CALL, headers=MCP_HEADERS + b"X-Tenant-Token: t-0815\r\n"))
        it.master.addons.trigger(hooks.DoneHook())
        (flow,) = read_flows(recording)
        mask = flow.request.headers["x-tenant-token"].encode()
        body = CALL.replace(b'"read_file"', b'"read_file","arguments":{"say":"%b"}' % mask)
        headers = MCP_HEADERS + b"X-Other: %b\r\nX-Tenant-Token: %b\r\n" % (mask, mask)
        path = f"/mcp?say={mask.decode()}"
        got = await client.ask(post(body, path=path, headers=headers))
    assert heard[0].count(b"t-0815") == 1
    assert b"t-0815" not in heard[1]
    assert heard[1].count(mask) == 4
    assert got.all("set-cookie") == [f"a={mask.decode()}"]


async def test_a_client_gets_the_unmasked_answer(tmp_path: Path) -> None:
    """A cookie of the upstream's, over HTTP/1 and HTTP/2, and also with an event stream."""

    async def respond(request: RawRequest, peer: Any) -> None:
        cookie = b"\r\nSet-Cookie: sid=c-4711; Path=/\r\n"
        if b"x-stream" in request.head.lower():
            await peer.say(SSE_HEAD.replace(b"\r\n", cookie, 1) + chunk(EVENT) + LAST_CHUNK)
        else:
            await peer.say(answer(RESULT).replace(b"\r\n", cookie, 1))

    recording = tmp_path / "all.flow"
    async with recorded(recording, respond) as (it, client), h2_client(it.port) as other:
        got = await client.ask(post(CALL, headers=MCP_HEADERS + KEY))
        streamed = await client.ask(post(CALL, headers=MCP_HEADERS + KEY + b"X-Stream: yes\r\n"))
        asked = [(b"content-type", b"application/json"), (b"x-api-key", b"from-the-client")]
        second = await other.over(other.ask(body=CALL, headers=asked))
    assert got.all("set-cookie") == streamed.all("set-cookie") == ["sid=c-4711; Path=/"]
    assert second.headers[b"set-cookie"] == b"sid=c-4711; Path=/"
    assert (got.body, second.data) == (RESULT, RESULT)
    shown = recording.read_bytes()
    assert b"sid=masked-" in shown
    assert b"c-4711" not in shown
    assert b"from-the-client" not in shown
