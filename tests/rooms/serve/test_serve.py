"""``serve``: all servers of a file behind one port."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Site, Surroundings, TargetFinder
from mcp_tool_filter.core.upstream.target import target_for
from mcp_tool_filter.rooms.logins.login import Wishes, log_in
from mcp_tool_filter.rooms.logins.store import LoginStore
from mcp_tool_filter.rooms.serve.command import _plans as plans_of
from mcp_tool_filter.rooms.serve.mount import Mount
from tests.browser import Page, browser
from tests.cli.launched import RunningLauncher, launched, run
from tests.cli.test_settings import sources
from tests.end_to_end.logins import PLACES
from tests.login_browser import browse
from tests.make import asking, calling
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, tool
from tests.oauth_upstream import oauth_upstream
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, RawRequest, answer, free_port
from tests.rooms.stdio.relaying import text_in
from tests.rooms.stdio.served_command import INITIALIZE, READY, Answer, Served
from tests.rows import each_row
from tests.session_upstream import session_upstream
from tests.stdio_client import StdioClient, filtered, is_alive, upstream


@dataclass
class Serving:
    """A running ``serve``."""

    client: StdioClient
    file: Path
    port: int = 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.client.process

    @property
    def stderr(self) -> str:
        return self.client.stderr()

    def says(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until stderr has this."""
        end = time.monotonic() + TIMEOUT
        ended = False
        while len(found := list(re.finditer(pattern, self.stderr))) < times:
            is_over = ended or time.monotonic() > end
            assert not is_over, f"{pattern}\n{self.stderr}"
            if ended := self.process.poll() is not None:
                self.client.ends()  # so that all that it has said is read
            time.sleep(0.02)
        return found[-1]

    def reads(self, text: str, pattern: str) -> None:
        """Change the file and let it be read again."""
        self.file.write_text(text)
        before = len(re.findall(pattern, self.stderr))
        self.process.send_signal(signal.SIGHUP)
        self.says(pattern, before + 1)

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        return Served(self.port, self.client).send(method, path, body, **headers)

    def at(self, name: str) -> Served:
        """Open a session with a server."""
        client = Served(self.port, self.client, path=f"/{name}/mcp")
        client.opens()
        return client


@contextmanager
def serving(
    folder: Path, text: str, *flags: str, report: str = "MCP tool filter: ", **variables: str
) -> Iterator[Serving]:
    file = folder / "servers.toml"
    file.write_text(text)
    words = ("serve", "--config", str(file), "--port", "0", *flags)
    with filtered(*words, home=folder, environment=variables) as client:
        running = Serving(client, file)
        running.says(report)
        if found := re.search(r"MCP tool filter: http://127\.0\.0\.1:(\d+) -> ", running.stderr):
            running.port = int(found[1])
        yield running


def command(tools: str, *more: str) -> str:
    return f"command = {json.dumps([*upstream('--tools', tools), *more])}\n"


def hidden_in(answer: Any) -> bool:
    return bool(answer["error"]["code"] == -32602 or answer["error"]["code"] == -32601)


OF_OTHERS = f"""
    metrics-token = "$METRICS"
    metrics-port = 0
    [servers.first]
    {command("env")}
    env = {{FILES = "$HOME", SHARED = "${{SHARED}}"}}
    [servers.second]
    url = "http://127.0.0.1:1/$IN_URL"
    header = ["Authorization: Bearer $TOKEN", "X-Both: $SHARED", "X-Price: $$TEN"]
    [servers.third]
    {command("env")}
    env = {{KEY = "$KEY"}}
    tools.env.fix = {{more = ["$FIXED"]}}
"""
VARIABLES = ["TOKEN", "IN_URL", "KEY", "FIXED", "METRICS", "SHARED", "HOME", "TEN", "OTHER"]


def test_a_command_gets_no_variable_that_the_file_has_for_other_servers(tmp_path: Path) -> None:
    given = {name: f"value-of-{name}" for name in VARIABLES if name != "HOME"}

    def known_to(client: Any) -> set[str]:
        said = {name: text_in(client.calls("env", name=name)) for name in VARIABLES}
        return {name for name, text in said.items() if text != "unset"}

    with serving(tmp_path, OF_OTHERS, **given) as it:
        assert known_to(it.at("first")) == {"SHARED", "HOME", "TEN", "OTHER"}
        assert known_to(it.at("third")) == {"KEY", "FIXED", "HOME", "TEN", "OTHER"}
    words = ("--config", str(it.file), "--server", "first")
    with filtered(*words, home=tmp_path, environment=given) as client:
        assert "unset" in text_in(client.calls("env", name="TOKEN"))
        assert "value-of-OTHER" in text_in(client.calls("env", name="OTHER"))


def test_each_server_has_its_own_policy_sessions_and_headers(tmp_path: Path) -> None:
    with session_upstream() as remote:
        text = f"""
            deny = ["^delete_"]
            audit-log = "audit.jsonl"
            upstream = "http://127.0.0.1:1"
            endpoint = "/other"
            [servers.files]
            {command("read_file,delete_file,env,write_file")}
            env = {{COLOUR = "$COLOUR"}}
            except = "^delete_file$"
            [servers."Team.x-1"]
            {command("read_file,delete_file,write_file")}
            allow = "_file"
            deny = "write"
            [servers.remote]
            url = "{remote.url}"
            header = ["X-Key: $KEY"]
        """
        with serving(tmp_path, text, KEY="secret", COLOUR="blue") as it:
            it.says("Warning: upstream at the top of .* is not served")
            it.says(r"3 servers\n(.*\n)*  remote: .*/remote/mcp -> .*/mcp: 9 tools, 1 hidden")
            files, team, far = it.at("files"), it.at("Team.x-1"), it.at("remote")
            assert files.tools() == ["read_file", "delete_file", "env", "write_file"]
            assert team.tools() == ["read_file"]
            assert "delete_file" not in far.tools()
            assert hidden_in(team.calls("write_file"))
            assert hidden_in(far.calls("delete_file"))
            assert "blue" in text_in(files.calls("env", name="COLOUR"))
            assert "result" in far.calls("read_file")
            assert remote.calls()[0].headers["x-key"] == "secret"
            for one, other in ((files, "Team.x-1"), (far, "files"), (files, "remote")):
                stolen = replace(one, path=f"/{other}/mcp")
                assert stolen.post(asking("tools/list")).status == 404
            assert "secret" not in it.stderr
            it.process.send_signal(signal.SIGTERM)
            assert it.client.ends() == 0
        lines = [json.loads(one) for one in (tmp_path / "audit.jsonl").read_text().splitlines()]
        named = [(one.get("server"), one.get("tool")) for one in lines if one.get("tool")]
        assert ("Team.x-1", "write_file") in named
        assert ("remote", "delete_file") in named
        assert re.search(r"\d remote tools/call delete_file: refused", it.stderr)


@pytest.mark.parametrize("path", [
    "/", "/files", "/files?a", "/nobody/mcp", "/FILES/mcp", "//files/mcp",
    "/files/../far/mcp", "/files/./mcp", "/files//mcp", "/files%2f../far/mcp", "/%66iles/mcp",
    "/files/%2e%2e/far/mcp", "/files\\..\\far/mcp", "/files/..;/far/mcp", "/files/x/../mcp",
    "/nobody/../files/mcp", "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/nobody/mcp",
    "/.well-known/oauth-protected-resource/../files/mcp",
])  # fmt: skip
def test_other_paths_belong_to_nobody(path: str, both: Serving) -> None:
    answer = both.send("POST", path, INITIALIZE)
    assert (answer.status, answer.json()["error"]["code"]) == (404, -32600), answer
    assert both.send("GET", path).status == 404


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    text = f"[servers.files]\n{command('a')}[servers.far]\n{command('b')}"
    with serving(tmp_path_factory.mktemp("two"), text) as it:
        yield it


def test_pages_of_other_sites_are_kept_out_of_all_servers(both: Serving) -> None:
    for path in ("/files/mcp", "/nobody/mcp"):
        assert both.send("POST", path, INITIALIZE, host="evil.example").status == 403
        assert both.send("POST", path, INITIALIZE, origin="http://evil.example").status == 403
    url = f"http://127.0.0.1:{both.port}/files/mcp"
    assert both.send("POST", url, INITIALIZE).status == 200, "a target may be a whole URL"


def test_the_older_transport_is_below_the_servers_name(tmp_path: Path) -> None:
    """The upstream's stream names an endpoint, which is to lead to the same server."""
    text = f"[servers.old]\n{command('read_file,delete_file')}"
    with serving(tmp_path, text) as behind:
        url = f"http://127.0.0.1:{behind.port}/old/sse"
        (folder := tmp_path / "front").mkdir()
        text = f"""
            [servers.near]
            {command("read_file")}
            [servers.legacy]
            url = "{url}"
            endpoint = "/old/sse"
            deny = "delete"
        """
        with serving(folder, text) as it:
            it.says("legacy: .*: 2 tools, 1 hidden")
            for path in ("/legacy/old/sse", "/legacy/mcp", "/near/sse"):
                with Served(it.port, it.client).stream(path) as lines:
                    post = next(lines)
                    assert re.match(rf"/{path.split('/')[1]}/[^ ]*messages\?sessionId=[\w-]", post)
                    for message in (INITIALIZE, READY, asking("tools/list", id="2")):
                        assert it.send("POST", post, message).status == 202
                    answers = (json.loads(one) for one in lines)
                    found = next(one for one in answers if one.get("id") == 2)
                    assert [one["name"] for one in found["result"]["tools"]] == ["read_file"]


SAME = [
    ("http://localhost:3000", "http://[::ffff:127.0.0.1]:3000"),
    ("http://LOCALHOST.:3000", "http://127.1:3000"),
    ("http://localhost:3000", "http://name-of-this-machine:3000"),
    ("http://0:3000", "http://0x7f000001:3000"),
    ("http://a.example", "https://A.example."),
    ("https://10.0.0.1:8443", "https://[::ffff:a00:1]:8443"),
    ("https://b\u00fccher.example", "https://xn--bcher-kva.example:443"),
]
OTHER = [
    ("http://localhost:3000", "http://localhost:3001"),
    ("https://a.example", "https://b.example"),
    ("https://a.example", "https://a.example:8443"),
    ("http://10.0.0.2:8080", "http://10.0.0.3:8080"),
]


@pytest.mark.parametrize(("one", "other"), [*SAME, *OTHER])
def test_servers_of_one_origin_are_kept_apart_however_it_is_written(
    one: str, other: str, tmp_path: Path
) -> None:
    text = f"[servers.a]\nurl = '{one}/a'\n[servers.b]\nurl = '{other}/b'"
    plans = plans_of(sources(tmp_path, text))
    assert {plan.config.only_mcp for plan in plans} == {(one, other) in SAME}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_two_servers_of_one_origin_cannot_be_reached_through_each_other(
    host: str, tmp_path: Path
) -> None:
    """A gateway has several servers; each of ours has another policy."""
    text = f"[servers.one]\n{command('read_file,delete_file')}[servers.two]\n{command('b')}"
    with serving(tmp_path, text, "--allowed-hosts", host) as gateway:
        (folder := tmp_path / "front").mkdir()
        text = f"""
            [servers.one]
            url = "http://127.0.0.1:{gateway.port}/one/mcp?set=1"
            deny = "^delete_"
            [servers.two]
            url = "http://{host}:{gateway.port}/two/mcp"
        """
        with serving(folder, text) as it:
            it.says("2 servers")
            one, two = it.at("one"), it.at("two")
            assert (one.tools(), two.tools()) == (["read_file"], ["b"])
            assert "result" in one.calls("read_file")
            for path in (
                "/two/one/mcp", "/two/one/sse", "/two/one/mcp?set=1", "/two/mcp/", "/two/mcp?a=1",
                "/two/", "/two/one/mcp/", "/two/messages?sessionId=1",
            ):  # fmt: skip
                for method in ("POST", "GET", "DELETE", "OPTIONS"):
                    answer = it.send(method, path, INITIALIZE if method == "POST" else b"")
                    assert answer.status == 404, (path, method, answer)
            # The operator's query wins, so this is the same server with the same policy.
            assert it.send("POST", "/one/mcp?set=2", INITIALIZE).status == 200
            file = it.file.read_text()
            it.reads(file.replace('deny = "^delete_"', 'deny = "^read_"'), "one: SIGHUP: ")
            assert (one.tools(), two.tools()) == (["delete_file"], ["b"])
            assert it.send("POST", "/two/one/mcp", INITIALIZE).status == 404
            locked = file.replace('deny = "^delete_"', 'lock = "none"')
            it.reads(locked, "SIGHUP: one stays as it was")
            assert it.send("POST", "/two/one/mcp", INITIALIZE).status == 404


def redirecting(location: bytes) -> Respond:
    """Redirect a login there; say to everything else that it was done."""

    async def respond(request: RawRequest, peer: Peer) -> None:
        if "authorize" in request.line:
            found = answer(b"", status="302 Found")
            await peer.say(found.replace(b"\r\n", b"\r\nLocation: " + location + b"\r\n", 1))
        elif "well-known" in request.line:
            await peer.say(answer(b"{}", status="404 Not Found"))
        elif request.line.startswith("GET"):
            events = b"event: endpoint\ndata: /two/mcp?session=1\n\n"
            await peer.say(answer(events, kind="text/event-stream"))
        else:
            await peer.say(answer(RESULT))

    return respond


@each_row("location", [b"/two/mcp", b"/two/mcp/", b"/TWO/mcp?a=1", b"/two/mcp/x", b"/sse", b"/any"])
async def test_a_redirect_of_a_login_leads_to_no_other_server(
    location: bytes, tmp_path: Path
) -> None:
    """Whoever may redirect a login would choose which tools another server's policy denies."""
    async with mcp_upstream(tools=[tool("a")], respond=redirecting(location)) as gateway:
        origin = gateway.url.removesuffix("/mcp")
        text = f"""
            [servers.one]
            url = "{origin}/one/mcp"
            login-through = "off"
            [servers.two]
            url = "{origin}/two/mcp"
            deny = "^a$"
        """
        call = calling("a")
        with serving(tmp_path, text) as it:
            it.says("2 servers")

            def ask(method: str, path: str, body: bytes = b"") -> Answer:
                return it.send(method, path, body, accept="application/json, text/event-stream")

            shown = await asyncio.to_thread(ask, "GET", "/one/authorize?x=y")
            assert shown.status == 302
            there = "/one" + location.decode()
            if b"two" in location.lower():
                assert (await asyncio.to_thread(ask, "GET", there)).status == 404
            else:
                assert (await asyncio.to_thread(ask, "GET", there)).status in (200, 502)
            for path in (there, "/one/authorize", "/one/token", "/one/two/mcp?session=1"):
                for body in (call, b"[" + call + b"]"):
                    said = await asyncio.to_thread(ask, "POST", path, body)
                    assert said.status == 404, (path, said)
            assert not gateway.of("tools/call")
            posted = await asyncio.to_thread(ask, "POST", "/one/token", b'{"grant_type":"x"}')
            assert posted.status == 200


def test_a_server_whose_lock_breaks_does_not_stay_where_another_one_is_now(tmp_path: Path) -> None:
    """The other one could be reached through it, past its own policy; or it through the other."""
    text = f"[servers.one]\n{command('read_file')}[servers.two]\n{command('b')}"
    with serving(tmp_path, text) as gateway:
        (folder := tmp_path / "front").mkdir()
        url = f"http://127.0.0.1:{gateway.port}"
        alone = f"[servers.one]\nurl = '{url}/one/mcp'\n"
        other = f"[servers.two]\nurl = '{url}/two/mcp'\n"
        with serving(folder, alone) as it:
            assert it.at("one").tools() == ["read_file"]
            it.reads(f"{alone}lock = 'none'\n{other}", "one is not available: .*none")
            assert it.at("two").tools() == ["b"]
            assert b"-32000" in it.send("POST", "/one/two/mcp", INITIALIZE).body
            it.reads(f"{alone}{other}", "one: http")
            moved = alone.replace("127.0.0.1", "localhost.invalid")
            it.reads(f"{moved}lock = 'none'\n{other}", "one is not available: .*none")
            assert b"-32000" in it.send("POST", "/one/mcp", INITIALIZE).body


@each_row("path, more", [
    ("/b", "lock = 'no.lock'"), ("/b", "header = 'X-Key: $NOT_SET'"), ("/b?key=$NOT_SET", ""),
])  # fmt: skip
def test_a_server_that_cannot_run_is_not_reached_through_another_one_of_its_origin(
    path: str, more: str, tmp_path: Path
) -> None:
    """It may still run with the settings that it had before."""
    gateway = "http://localhost:3000"
    text = f"[servers.a]\nurl = '{gateway}/a'\n[servers.b]\nurl = '{gateway}{path}'\n{more}"
    a, b = plans_of(sources(tmp_path, text))
    assert (a.config.only_mcp, a.problem is None, b.problem is None) == (True, True, False)


def test_a_server_that_cannot_run_is_tried_again_and_stops_no_other(tmp_path: Path) -> None:
    port = free_port()
    text = f"""
        [servers.far]
        url = "http://127.0.0.1:{port}/mcp"
        [servers.gone]
        command = ["/no/such/program"]
        [servers.unset]
        command = ["x"]
        env = {{A = "$NOT_SET_AT_ALL"}}
        [servers.dies]
        command = ["{sys.executable}", "-c", "raise SystemExit(3)"]
        [servers.here]
        {command("crash,read_file")}
    """
    with serving(tmp_path, text) as it:
        for name in ("far", "gone", "unset", "dies"):
            it.says(f"Warning: {name} is not available: .")
            answer = it.send("POST", f"/{name}/mcp", INITIALIZE)
            assert answer.json()["error"]["code"] == -32000
            assert it.send("GET", f"/{name}/mcp").json()["error"]["code"] == -32000
            it.says(rf" {name} request: refused \(lost\)", 2)
        assert "NOT_SET_AT_ALL is not set" in it.stderr
        it.send("POST", "/nobody/mcp", INITIALIZE)
        it.says(r"\d request: refused \(forbidden: path\)")
        here = it.at("here")
        assert here.calls("crash")["error"]["code"] == -32000
        assert it.at("here").tools() == ["crash", "read_file"], "another process for a new session"
        # A real upstream on a port that it keeps.
        command_of = upstream("--tools", "read_file,delete_file")
        words = ("--deny", "^$", "--port", str(port), "--", *command_of)
        with filtered(*words, home=tmp_path) as far:
            far.said_on_stderr("Saved:")
            assert "delete_file" in it.at("far").tools()
            it.says("  far: .*: 2 tools, 0 hidden")
            far.process.kill()
            far.process.wait()
            answer = it.send("POST", "/far/mcp", INITIALIZE)
            assert answer.json()["error"]["code"] == -32000
            it.says("Warning: far: Lost connection to upstream MCP")
            assert it.at("here").tools()
        with filtered(*words, home=tmp_path):
            it.says("far: The upstream is back")
            assert "delete_file" in it.at("far").tools()


@pytest.mark.parametrize(("text", "said"), [
    ('deny = "a"\n[servers.a]\nurl = "http://127.0.0.1:1/mcp"', "Error: a: Failed to connect"),
    (f"deny = 'nothing_like_it'\n[servers.a]\n{command('read_file')}", "matches no tool"),
    (f"deny = 'read'\n[servers.a]\n{command('read_file')}deny = 'no_such'", "a: The pattern"),
    (f"[servers.a]\n{command('read_file')}", "Nothing is denied"),
])  # fmt: skip
def test_with_strict_the_process_ends(text: str, said: str, tmp_path: Path) -> None:
    with serving(tmp_path, text, "--strict", report="Error: ") as it:
        assert it.client.ends() in (1, 2)
        assert said in it.stderr


def test_with_strict_a_pattern_for_all_servers_must_match_somewhere_only(tmp_path: Path) -> None:
    text = f"strict = true\ndeny = 'read'\n[servers.a]\n{command('read_file')}"
    text += f"[servers.b]\n{command('c,read_d')}"
    text += f"[servers.c]\n{command('e')}deny = '^f'\nstrict = false"
    with serving(tmp_path, text, report="(Error: |MCP tool filter)") as it:
        assert "Error" not in it.stderr
        assert 'Warning: c: the pattern "^f" matches no tool' in it.stderr
        assert '"read" matches no tool' not in it.stderr


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    kept, gone = f"[servers.kept]\n{command('read_file,delete_file')}", "[servers.gone]\n"
    gone += command("read_file")
    other = f"[servers.other]\n{command('a')}"
    with serving(tmp_path, kept + gone + other) as it:
        clients = {name: it.at(name) for name in ("kept", "gone", "other")}
        assert clients["kept"].tools() == ["read_file", "delete_file"]
        for broken in ("x", kept + 'dney = "a"', kept + 'deny = "("', "deny = 'a'", ""):
            it.reads(broken, "Warning: SIGHUP: nothing has changed: .")
        it.file.unlink()
        os.mkfifo(it.file)
        it.process.send_signal(signal.SIGHUP)
        it.says("SIGHUP: nothing has changed: Cannot read the config file .*not a regular file")
        it.file.unlink()
        assert clients["gone"].tools() == ["read_file"]
        new = f"[servers.new]\n{command('b')}"
        changed = f"[servers.other]\n{command('a,c')}"
        it.reads(f"deny = '^delete'\n{kept}{new}{changed}", "new: http://.*: 1 tool, 0 hidden")
        it.says("gone is not in the config file any more")
        it.says("kept: SIGHUP: .*1 are hidden")
        it.says("other: http://.*: 2 tools, 0 hidden")
        assert clients["kept"].tools() == ["read_file"], "the session goes on"
        assert hidden_in(clients["kept"].calls("delete_file"))
        assert it.at("new").tools() == ["b"]
        assert it.send("POST", "/gone/mcp", INITIALIZE).status == 404
        assert clients["other"].post(asking("tools/list")).status == 404, "it was started anew"
        assert it.at("other").tools() == ["a", "c"]


def test_sighup_with_broken_rules_changes_no_server(tmp_path: Path) -> None:
    rule = "{id: no, conditions: [tool_equals: a], actions: [block: no]}"
    rules = f"interceptor:\n  rules:\n    - {rule}\n"
    (tmp_path / "rules.yaml").write_text(rules)
    first = f"[servers.first]\n{command('a,b')}"
    second = f"[servers.second]\n{command('a,b')}"
    with serving(tmp_path, first + second) as it:
        one, two = it.at("first"), it.at("second")
        said = "nothing has changed: second: Cannot read the rules file"
        it.reads(f"{first}deny = 'b'\n{second}rules = 'none.yaml'\n", said)
        assert (one.tools(), two.tools()) == (["a", "b"], ["a", "b"])
        said = "second: http.* hidden; rules: 1: no"
        it.reads(f"{first}deny = 'b'\n{second}rules = 'rules.yaml'\n", said)
        assert (one.tools(), it.at("second").calls("a")["error"]["message"]) == (["a"], "no")
        # Rules cannot be removed from a running server: it starts anew.
        it.reads(f"{first}deny = 'b'\n{second}deny = 'b'\n", "second: http")
        assert "result" in it.at("second").calls("a")
        assert it.at("second").tools() == ["a"]


def test_sighup_moves_patterns_from_all_servers_to_one(tmp_path: Path) -> None:
    one, other = f"[servers.one]\n{command('a,b')}", f"[servers.other]\n{command('a,b')}"
    with serving(tmp_path, f"deny = 'a'\n{other}{one}") as it:
        clients = [it.at("one"), it.at("other")]
        it.reads(f"{other}{one}deny = 'a'\n", "other: SIGHUP: .* 0 are hidden")
        assert [client.tools() for client in clients] == [["b"], ["a", "b"]]


def test_sighup_gives_no_rights_to_the_network_on_which_it_still_listens(tmp_path: Path) -> None:
    """The new host of the file counts only after a new start."""
    server = f"[servers.a]\nurl = 'http://127.0.0.1:{free_port()}'\n"
    with serving(tmp_path, f"host = '0.0.0.0'\n{server}") as it:
        for host in ("0.0.0.0", "127.0.0.1"):
            text = f"host = '{host}'\n{server}header = 'X-Key: a'\n"
            it.reads(text, "nothing has changed: With --host 0.0.0.0, everybody on the network")


def test_a_slow_start_delays_no_other_server(tmp_path: Path) -> None:
    """It waits in its own session only."""
    with session_upstream() as remote:
        slow = "[servers.slow]\ncommand = ['sh', '-c', 'cat >/dev/null']"  # ends with its input
        text = f"{slow}\n[servers.far]\nurl = '{remote.url}'\n[servers.near]\n{command('a')}"
        with serving(tmp_path, text) as it:
            it.says("  slow: it is still starting")
            assert it.at("near").tools() == ["a"]
            assert "read_file" in it.at("far").tools()


def test_a_changed_policy_counts_at_once_whatever_other_servers_do(tmp_path: Path) -> None:
    """It counts for a server that starts, too, and no list has to come first."""
    go = tmp_path / "go"
    waits = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"', str(go)]
    near = f"[servers.near]\n{command('read_file,delete_file')}"
    slow = f"[servers.slow]\ncommand = {json.dumps([*waits, *upstream()])}\n"
    slow += "connection-timeout = 900000\ntool-list-timeout = 900000\n"
    with serving(tmp_path, near) as it:
        client = it.at("near")
        it.reads(near + slow, "near: SIGHUP: took a new list")
        it.reads(f"deny = '^delete_'\n{near}{slow}", "near: SIGHUP: .*; by the new policy 1 are")
        assert hidden_in(client.calls("delete_file"))
        it.reads(f"deny = '^read_'\n{near}{slow}", "near: SIGHUP: .*; by the new policy 1 are")
        go.touch()
        it.says("slow: http.*[1-9] hidden")
        assert "read_file" not in it.at("slow").tools()
        assert hidden_in(it.at("slow").calls("read_file"))


def at(url: str) -> TargetFinder:
    return lambda config: target_for(config, url, None)


async def test_a_policy_that_changes_while_names_are_looked_up_counts() -> None:
    async with mcp_upstream(tools=[tool("a"), tool("b")]) as upstream:

        async def find_names(url: str) -> UpstreamNames:
            proxy.adopt(parse_config(deny=["^b$"]))
            return UpstreamNames(url)

        around = Surroundings(
            rooms=ROOMS,
            warn=print, render=render_report, report=print,
            leave=print, make_tls=ssl.create_default_context,
            find_names=find_names,
        )  # fmt: skip
        proxy = Proxy(around)
        site = await proxy.open("it", at(upstream.url), address="")
        assert [*site.listener.snapshot.allowed] == ["a"]


async def test_a_lost_server_that_was_removed_is_not_asked_any_more() -> None:
    said: list[str] = []
    around = Surroundings(
        rooms=ROOMS,
        warn=said.append, render=render_report, report=print,
            leave=print, make_tls=ssl.create_default_context,
    )  # fmt: skip
    async with mcp_upstream(tools=[tool("a")]) as upstream:
        sites: list[Site] = []
        for name in ("kept", "removed"):
            proxy = Proxy(around, Proxy(around))
            proxy.adopt(Config(fail_fast=False))
            place = partial(Mount, f"/{name}")
            sites.append(await proxy.open(name, at(upstream.url), address="", place_of=place))
            proxy.changes.lose(sites[-1])
        kept, removed = sites
        proxy.end("removed")
        for site in (removed, kept):
            site.reached.set()  # both look at once whether it is back
        async with asyncio.timeout(TIMEOUT):
            while kept.is_lost:
                await asyncio.sleep(0.01)
        assert removed.is_lost
        proxy.changes.lose(removed)
        assert [one.partition(":")[0] for one in said] == [
            "Warning",
            "Warning",
            "The upstream is back",
        ]


def test_sighup_changes_how_much_a_command_may_be_sent(tmp_path: Path) -> None:
    server = f"[servers.a]\n{command('read_file')}"
    with serving(tmp_path, f"message-limit = '1KB'\n{server}") as it:
        assert "too large" in it.at("a").calls("read_file", text="x" * 9999)["error"]["message"]
        it.reads(f"message-limit = '1MB'\n{server}", "a: ")
        assert "result" in it.at("a").calls("read_file", text="x" * 9999)


LOGINS = {"one": "same origin, sends iss", "other": "same origin", "old": "2025-03-26"}
LOGINS["oldest"] = "2025-03-26, without metadata"


def test_clients_log_in_to_each_server(tmp_path: Path) -> None:
    """Each has its own metadata (RFC 9728), and a token of one is not for the other.

    Clients would look for the login of an upstream of MCP 2025-03-26 at our root.
    """
    with ExitStack() as stack:
        places = {name: PLACES[place] for name, place in LOGINS.items()}
        behind = {name: stack.enter_context(oauth_upstream(**it)) for name, it in places.items()}
        free = stack.enter_context(session_upstream())
        text = "".join(f"[servers.{name}]\nurl = '{one.url}'\n" for name, one in behind.items())
        with serving(tmp_path, f"{text}[servers.free]\nurl = '{free.url}'") as it:
            it.says("old: .*its tools are listed when a client logs in")
            for name, one in behind.items():
                url = f"http://127.0.0.1:{it.port}/{name}/mcp"
                path = f"/.well-known/oauth-protected-resource/{name}/mcp"
                assert it.send("GET", path).json()["resource"] == url
                refused = it.send("POST", f"/{name}/mcp", asking("tools/list"))
                assert refused.status == 401
                named = path in refused.headers["www-authenticate"]
                assert named is one.has_resource_metadata
                store = LoginStore(tmp_path / name)
                asyncio.run(log_in(url, Wishes(timeout=TIMEOUT), store, _show))
                (kept,) = store.all()
                assert kept.tokens
                token = f"Bearer {kept.tokens.access_token}"
                answer = it.send("POST", f"/{name}/mcp", asking("tools/list"), authorization=token)
                assert answer.status == 200, answer
                grants = [grant for _, grant in one._access.values()]
                assert {grant.resource for grant in grants} == {one.url}
            # One without a login answers itself.
            documents = ("oauth-protected-resource/free/mcp", "oauth-authorization-server/free")
            assert [it.send("GET", f"/.well-known/{one}").status for one in documents] == [405, 405]


async def _show(url: str) -> None:
    await asyncio.to_thread(browse, url)


@contextmanager
def page_of(it: Serving, folder: Path) -> Iterator[Page]:
    address = it.says(r"Dashboard: (\S+)")[1]
    with browser(folder) as page:
        page.go(f"{address}&tab=tools")
        page.wait_for("Live", "read_file")
        yield page
        assert page.errors() == []


def press(page: Page, label: str, *, seconds: float = 0) -> None:
    """Click, and hold the button down meanwhile."""
    css = f'button[aria-label="{label}"]'
    found = page.find(css)
    page.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", css)
    found.click(seconds=seconds)


@pytest.mark.rest
def test_the_page_edits_each_server_and_saves_it_in_the_file(tmp_path: Path) -> None:
    text = f"""# ours
deny = ['^delete_']  # for all
dashboard = 0
[servers.files]
{command("read_file,write_file,delete_file,env")}env = {{KEY = "s3cret"}}
deny = ["^env$"]  # not this
# the end of files
[servers.other]
{command("read_file,delete_file")}"""
    with serving(tmp_path, text) as it, page_of(it, tmp_path) as page:
        files, other = it.at("files"), it.at("other")
        # The page shows other seconds in between, because there are sessions.
        press(page, "Hide read_file of files", seconds=2.5)
        press(page, "Show delete_file of files")
        page.wait_for("1 tool to hide, 1 to show", 'deny = ["^env$", "^read_file$"]')
        press(page, "Apply the changes of files")
        page.wait_for("Now active")
        assert files.tools() == ["write_file", "delete_file"]
        assert other.tools() == ["read_file"]
        press(page, "Save the patterns of files")
        page.wait_for("This changes in", "+deny = [\"^env$\", '^read_file$']  # not this")
        assert "s3cret" not in page.text
        assert it.file.read_text() == text
        press(page, "Write the file of files")
        page.wait_for("Saved in")
        after = text.replace('["^env$"]', "[\"^env$\", '^read_file$']")
        end = "# the end of files"
        assert it.file.read_text() == after.replace(end, f"{end}\nexcept = ['^delete_file$']")
        it.process.send_signal(signal.SIGHUP)
        it.says("other: SIGHUP: ")
        assert files.tools() == ["write_file", "delete_file"], "as it was saved"


def test_what_the_page_changes_is_for_one_server_until_the_file_is_read_again(
    tmp_path: Path,
) -> None:
    text = f"""
        dashboard = 0
        except = "^keep_"
        allow = "_file"
        [servers.files]
        {command("read_file,keep_file,other")}
        allow = "e"
        [servers.other]
        {command("read_file")}
    """
    with serving(tmp_path, text) as it:
        files = it.at("files")
        change = board_of(it)
        preview = change("preview", server="files", hide=["keep_file"], show=[])
        assert "except for all servers" in preview["problem"]
        wanted = change("preview", server="files", hide=["read_file"], show=[])
        assert (wanted["deny"], wanted["except"]) == (["^read_file$"], [])
        edited = {"deny": wanted["deny"], "except": []}
        assert change("apply", server="files", **edited) == {"problem": ""}
        assert files.tools() == ["keep_file"], "both allow lists stay in force"
        assert it.at("other").tools() == ["read_file"]
        assert "Unsafe regex" in change("apply", server="files", deny=["(a+)+"])["problem"]
        assert "cannot be edited here" in change("apply", deny=["a"])["problem"]
        with pytest.raises(KeyError):
            change("apply", server="nobody", deny=["a"])
        it.process.send_signal(signal.SIGHUP)
        it.says("files: SIGHUP: ")
        assert files.tools() == ["read_file", "keep_file"]


def test_with_a_broken_lock_the_page_changes_nothing_of_that_server(tmp_path: Path) -> None:
    lock = tmp_path / "tools.lock"
    text = f"""
        dashboard = 0
        deny = "^delete_"
        [servers.locked]
        {command("read_file,delete_file,env")}
        deny = "^env$"
        lock = "{lock.name}"
        [servers.other]
        {command("read_file")}
    """
    words = upstream("--tools", "read_file,delete_file,env")
    assert run("lock", str(lock), "--", *words, home=tmp_path).returncode == 0
    with serving(tmp_path, text) as it:
        locked, change = it.at("locked"), board_of(it)
        assert change("preview", server="locked", hide=[], show=[])["deny"] == ["^env$"]
        lock.write_text("{")
        for deny in (["^x"], []):
            edited = {"deny": deny, "except": []}
            assert "The lock is broken" in change("apply", server="locked", **edited)["problem"]
            assert hidden_in(locked.calls("env"))
            assert locked.tools() == ["read_file"]
        # The other server can be edited, and saved.
        edited = {"deny": ["^read_file$"], "except": []}
        assert change("apply", server="other", **edited) == {"problem": ""}
        token = change("save", server="other", token="")["token"]
        assert change("save", server="other", token=token)["saved"]
        assert change("preview", server="locked", hide=[], show=[])["deny"]


def test_metrics_name_the_server(tmp_path: Path) -> None:
    text = f"""
        metrics-port = 0
        metrics-token = "t0ken"
        deny = "^delete_"
        [servers.files]
        {command("read_file,delete_file")}
        [servers.other]
        {command("read_file")}
        [servers.gone]
        command = ["/no/such/program"]
    """
    with serving(tmp_path, text) as it:
        files, other = it.at("files"), it.at("other")
        hidden_in(files.calls("delete_file"))
        for client in (files, other, other):
            client.calls("read_file")
        port = int(it.says(r"Metrics: http://127\.0\.0\.1:(\d+)/metrics")[1])
        at = Served(port, it.client)
        own = at.send("GET", "/metrics", authorization="Bearer t0ken").body.decode()
        others = at.send("GET", "/metrics").body.decode()
        for line in (
            'calls_total{server="files",tool="read_file"} 1.0',
            'calls_total{server="other",tool="read_file"} 2.0',
            'refusals_total{server="files",tool="delete_file",why="denied"} 1.0',
            'upstream_seconds_count{server="other"} 3.0',
            'upstream_up{server="files"} 1.0',
            'upstream_up{server="gone"} 0.0',
        ):
            assert f"mcp_tool_filter_{line}" in own
        assert 'calls_total{server="other"} 2.0' in others
        assert "_file" not in others
        assert at.send("GET", "/readyz").status == 200


def board_of(it: Serving) -> Callable[..., dict[str, Any]]:
    """Return what changes something on the page; KeyError for what it does not know."""
    found = it.says(r"Dashboard: http://127\.0\.0\.1:(\d+)(/mcp\?token=\S+)")
    port, path = int(found[1]), found[2]
    page = Served(port, it.client)
    login = f"Bearer {path.partition('token=')[2]}"

    def change(name: str, **said: object) -> dict[str, Any]:
        answer = page.send("POST", f"/mcp/{name}", json.dumps(said).encode(), authorization=login)
        if answer.status != 200:
            raise KeyError(answer.status)
        return dict(answer.json())

    return change


def test_processes_end_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, f"[servers.a]\n{command('a')}") as it:
        (child,) = it.at("a").children()
        it.process.terminate()
        assert it.client.ends() == 0
        assert not is_alive(child)


def test_a_process_of_a_server_that_was_removed_ends_with_it_too(tmp_path: Path) -> None:
    """It does not end when its input does."""
    stays = ["sh", "-c", '"$@"; sleep 300', "sh", *upstream()]
    other = f"[servers.b]\n{command('b')}"
    with serving(tmp_path, f"[servers.a]\ncommand = {json.dumps(stays)}\n{other}") as it:
        client = it.at("a")
        assert client.has_children(1)
        (child,) = client.children()
        it.reads(other, "a is not in the config file any more")
        it.process.terminate()
        assert it.client.ends() == 0
        assert not is_alive(child)


JSON = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]


@asynccontextmanager
async def two(
    folder: Path, respond: Respond | None = None, top: str = ""
) -> AsyncIterator[tuple[RunningLauncher, int, McpUpstream, McpUpstream]]:
    """Serve two upstreams with the tools a and b: one denies a, the other b."""
    tools = [tool("a"), tool("b")]
    async with AsyncExitStack() as opened:
        one = await opened.enter_async_context(mcp_upstream(tools=tools, respond=respond))
        other = await opened.enter_async_context(mcp_upstream(tools=tools))
        file = folder / "servers.toml"
        file.write_text(
            f"{top}\n[servers.one]\nurl = '{one.url}'\ndeny = '^a$'\n"
            f"[servers.other]\nurl = '{other.url}'\ndeny = '^b$'\n"
        )
        it = await opened.enter_async_context(launched("serve", "--config", str(file), home=folder))
        found = await it.says(r"MCP tool filter: http://\S*:(\d+) -> 2 servers")
        yield it, int(found[1]), one, other


async def test_one_connection_may_ask_several_servers(tmp_path: Path) -> None:
    """Answers come in the order of the requests; a whole URL may be the target."""
    async with two(tmp_path) as (_, port, one, other), raw_client(port) as client:
        paths = ["/one/mcp", "/other/mcp", "/one/mcp", "http://localhost/other/mcp"]
        for called, refused in (("a", [True, False] * 2), ("b", [False, True] * 2)):
            await client.say(b"".join(post(calling(called), path=path) for path in paths))
            answers = [await client.answer() for _ in paths]
            assert [b"Tool not found" in each.body for each in answers] == refused
        assert [len(each.of("tools/call")) for each in (one, other)] == [2, 2]
        target = "http://localhost/one/../other/mcp"
        assert (await client.ask(post(calling("a"), path=target))).status == 404
        assert len(other.of("tools/call")) == 2


async def test_whatever_else_can_be_a_target_belongs_to_nobody(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, port, one, other):
        for line in (b"OPTIONS *", b"CONNECT other:80", b"GET one/mcp", b"POST ?/one/mcp"):
            async with raw_client(port) as client:
                request = line + b" HTTP/1.1\r\n" + MCP_HEADERS + b"\r\n"
                assert (await client.ask(request)).status in (400, 404), line
        assert not one.asked
        assert not other.asked


async def test_a_server_card_is_not_found_as_it_names_the_server_itself(tmp_path: Path) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(answer(b'{"remotes":[]}'))

    async with two(tmp_path, respond) as (_, port, _, _), raw_client(port) as client:
        found = await client.ask(get(path="/one/.well-known/mcp/server-card"))
        assert found.status == 404


async def test_a_flooded_or_broken_server_delays_no_other(tmp_path: Path) -> None:
    """The other one answers while every call of the first one waits."""
    may_answer = asyncio.Event()
    waiting: list[RawRequest] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        waiting.append(request)
        await may_answer.wait()
        if b'"id":0,' in request.body:
            peer.writer.transport.abort()
            return
        await peer.say(answer(RESULT))

    async with AsyncExitStack() as opened:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))
        try:
            it, port, _, _ = await opened.enter_async_context(two(tmp_path, respond))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        clients = [await opened.enter_async_context(raw_client(port)) for _ in range(40)]
        for number, client in enumerate(clients):
            await client.say(post(calling("b", id=str(number)), path="/one/mcp"))
        async with asyncio.timeout(TIMEOUT):
            while len(waiting) < len(clients):
                await asyncio.sleep(0.01)
        async with raw_client(port) as client:
            for _ in range(20):
                found = await client.ask(post(calling("a"), path="/other/mcp"))
                assert b'"result"' in found.body
        assert not may_answer.is_set()
        may_answer.set()
        answers = [await client.answer() for client in clients]
        assert [b'"result"' in one.body for one in answers] == [False] + [True] * 39
        it.process.terminate()
        assert await it.exit_code() == 0


async def test_a_server_that_hangs_leaves_seats_for_the_clients_of_others(tmp_path: Path) -> None:
    """Else as many calls as there are seats would stop all servers."""
    reached = asyncio.Semaphore(0)

    async def respond(_request: RawRequest, peer: Peer) -> None:
        reached.release()
        await peer.left()

    async with (
        two(tmp_path, respond, "max-clients = 8") as (_, port, _, _),
        AsyncExitStack() as opened,
    ):
        for number in range(6):
            client = await opened.enter_async_context(raw_client(port))
            await client.say(post(calling("b", id=str(number)), path="/one/mcp"))
            await reached.acquire()
        client, other = [await opened.enter_async_context(raw_client(port)) for _ in range(2)]
        refused = await client.ask(post(calling("b"), path="/one/mcp"))
        assert (refused.status, b"wait for this server" in refused.body) == (503, True)
        found = await other.ask(post(calling("a"), path="/other/mcp"))
        assert b'"result"' in found.body


@pytest.mark.parametrize("drains", [True, False])
async def test_open_calls_are_answered_when_a_server_or_the_process_ends(
    drains: bool, tmp_path: Path
) -> None:
    """A call of a removed server gets an error; SIGTERM waits for the others as --drain says."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def respond(_request: RawRequest, peer: Peer) -> None:
        asked.set()
        await may_answer.wait()
        await peer.say(answer(RESULT))

    async with two(tmp_path, respond, "drain = 20") as (it, port, _, _), raw_client(port) as client:
        await client.say(post(calling("b"), path="/one/mcp"))
        async with asyncio.timeout(TIMEOUT):
            await asked.wait()
        if drains:
            it.process.terminate()
            may_answer.set()
            assert b'"result"' in (await client.answer()).body
            assert await it.exit_code() == 0
            return
        file = tmp_path / "servers.toml"
        file.write_text(
            "drain = 20\n[servers.other]" + file.read_text().split("[servers.other]")[1]
        )
        it.process.send_signal(signal.SIGHUP)
        error = json.loads((await client.answer()).body)["error"]
        assert error["code"] == -32000
        assert not may_answer.is_set()
        async with raw_client(port) as other:
            assert b'"result"' in (await other.ask(post(calling("a"), path="/other/mcp"))).body
        may_answer.set()
