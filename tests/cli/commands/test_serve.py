"""``serve``: all servers of a file behind one port."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.oauth.login import Wishes, log_in
from mcp_tool_filter.adapters.oauth.store import LoginStore
from mcp_tool_filter.cli.commands.serve import _plans as plans_of
from tests.browser import Page, browser
from tests.cli.commands.relaying import text_in
from tests.cli.commands.served_command import INITIALIZE, Answer
from tests.cli.launched import run, surroundings
from tests.cli.test_config_file import sources
from tests.end_to_end.logins import PLACES
from tests.login_browser import browse
from tests.make import asking, calling
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import TIMEOUT, free_port
from tests.session_upstream import session_upstream
from tests.stdio_client import upstream

JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


@dataclass
class Serving:
    """A running ``serve``."""

    process: subprocess.Popen[bytes]
    log: Path
    file: Path
    port: int = 0

    @property
    def stderr(self) -> str:
        return self.log.read_text()

    def says(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until stderr has this."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and self.process.poll() is None:
            if len(found := list(re.finditer(pattern, self.stderr))) >= times:
                return found[-1]
            time.sleep(0.02)
        found = list(re.finditer(pattern, self.stderr))
        assert len(found) >= times, f"{pattern}\n{self.stderr}"
        return found[-1]

    def reads(self, text: str, pattern: str) -> None:
        """Change the file and let it be read again."""
        self.file.write_text(text)
        before = len(re.findall(pattern, self.stderr))
        self.process.send_signal(signal.SIGHUP)
        self.says(pattern, before + 1)

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        with closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, JSON | named)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())

    def at(self, name: str) -> Client:
        """Open a session with a server."""
        answer = self.send("POST", f"/{name}/mcp", INITIALIZE)
        session = answer.headers.get("mcp-session-id", "")
        client = Client(self, f"/{name}/mcp", {"mcp_session_id": session} if session else {})
        assert client.post(READY).status == 202, answer
        return client


@dataclass
class Client:
    serving: Serving
    path: str
    headers: dict[str, str]

    def post(self, message: bytes) -> Answer:
        return self.serving.send("POST", self.path, message, **self.headers)

    def tools(self) -> list[str]:
        answer = self.post(asking("tools/list")).messages()[-1]
        return [one["name"] for one in answer["result"]["tools"]]

    def calls(self, tool: str, arguments: str = "{}") -> Any:
        return self.post(calling(tool, arguments=arguments)).messages()[-1]


@contextmanager
def serving(
    folder: Path, text: str, *flags: str, report: str = "MCP tool filter: ", **variables: str
) -> Iterator[Serving]:
    file = folder / "servers.toml"
    file.write_text(text)
    words = ["serve", "--config", str(file), "--port", "0", *flags]
    with filtering(folder, words, variables) as running:
        running.says(report)
        if found := re.search(r"MCP tool filter: http://127\.0\.0\.1:(\d+) -> ", running.stderr):
            running.port = int(found[1])
        yield running


@contextmanager
def filtering(
    folder: Path, words: Sequence[str], variables: dict[str, str] | None = None
) -> Iterator[Serving]:
    log = folder / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcp_tool_filter", *words],
            stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            env=surroundings(folder, variables),
        )  # fmt: skip
    try:
        yield Serving(process, log, folder / "servers.toml")
    finally:
        process.kill()
        process.wait()


def command(tools: str, *more: str) -> str:
    return f"command = {json.dumps([*upstream('--tools', tools), *more])}\n"


def hidden_in(answer: Any) -> bool:
    return bool(answer["error"]["code"] == -32602 or answer["error"]["code"] == -32601)


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
            assert "blue" in text_in(files.calls("env", '{"name":"COLOUR"}'))
            assert "result" in far.calls("read_file")
            assert remote.calls()[0].headers["x-key"] == "secret"
            for one, other in ((files, "Team.x-1"), (far, "files"), (files, "remote")):
                stolen = Client(it, f"/{other}/mcp", one.headers).post(asking("tools/list"))
                assert stolen.status == 404
            assert "secret" not in it.stderr
            it.process.send_signal(signal.SIGTERM)
            assert it.process.wait(TIMEOUT) == 0
        lines = [json.loads(one) for one in (tmp_path / "audit.jsonl").read_text().splitlines()]
        named = [(one.get("server"), one.get("tool")) for one in lines if one.get("tool")]
        assert ("Team.x-1", "write_file") in named
        assert ("remote", "delete_file") in named
        assert re.search(r"\d remote tools/call delete_file: refused", it.stderr)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/mcp", "/files", "/files?a", "/nobody/mcp", "/FILES/mcp", "//files/mcp",
        "/files/../far/mcp", "/files/./mcp", "/files//mcp", "/files%2f../far/mcp", "/%66iles/mcp",
        "/files/%2e%2e/far/mcp", "/files\\..\\far/mcp", "/files/..;/far/mcp", "/files/x/../mcp",
        "/nobody/../files/mcp", "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/nobody/mcp",
        "/.well-known/oauth-protected-resource/../files/mcp",
    ],
)  # fmt: skip
def test_other_paths_belong_to_nobody(path: str, two: Serving) -> None:
    answer = two.send("POST", path, INITIALIZE)
    assert (answer.status, answer.json()["error"]["code"]) == (404, -32600), answer
    assert two.send("GET", path).status == 404


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    text = f"[servers.files]\n{command('a')}[servers.far]\n{command('b')}"
    with serving(tmp_path_factory.mktemp("two"), text) as it:
        yield it


def test_pages_of_other_sites_are_kept_out_of_all_servers(two: Serving) -> None:
    for path in ("/files/mcp", "/nobody/mcp"):
        assert two.send("POST", path, INITIALIZE, host="evil.example").status == 403
        assert two.send("POST", path, INITIALIZE, origin="http://evil.example").status == 403
    url = f"http://127.0.0.1:{two.port}/files/mcp"
    assert two.send("POST", url, INITIALIZE).status == 200, "a target may be a whole URL"


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
                name = path.split("/")[1]
                names = names_over_sse(it, path, rf"/{name}/[^ ]*messages\?sessionId=[\w-]")
                assert names == ["read_file"]


def names_over_sse(it: Serving, path: str, endpoint: str) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=TIMEOUT)
    with closing(connection):
        connection.request("GET", path, headers={"accept": "text/event-stream"})
        response = connection.getresponse()
        assert response.status == 200
        lines = (one[6:-1].decode() for one in iter(response.readline, b"") if one[:5] == b"data:")
        post = next(lines)
        assert re.match(endpoint, post), post
        for message in (INITIALIZE, READY, asking("tools/list", id="2")):
            assert it.send("POST", post, message).status == 202
        answers = (json.loads(one) for one in lines)
        found = next(one for one in answers if one.get("id") == 2)
        return [one["name"] for one in found["result"]["tools"]]


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
                "/one/mcp?set=2", "/two/", "/two/one/mcp/", "/two/messages?sessionId=1",
            ):  # fmt: skip
                for method in ("POST", "GET", "DELETE", "OPTIONS"):
                    answer = it.send(method, path, INITIALIZE if method == "POST" else b"")
                    assert answer.status == 404, (path, method, answer)
            file = it.file.read_text()
            it.reads(file.replace('deny = "^delete_"', 'deny = "^read_"'), "one: SIGHUP: ")
            assert (one.tools(), two.tools()) == (["delete_file"], ["b"])
            assert it.send("POST", "/two/one/mcp", INITIALIZE).status == 404


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
        (folder := tmp_path / "far").mkdir()
        flags = ("--port", str(port)) if port else ()
        with far_away(folder, flags) as far:
            assert "delete_file" in it.at("far").tools()
            it.says("  far: .*: 2 tools, 0 hidden")
            far.process.kill()
            far.process.wait()
            answer = it.send("POST", "/far/mcp", INITIALIZE)
            assert answer.json()["error"]["code"] == -32000
            it.says("Warning: far: Lost connection to upstream MCP")
            assert it.at("here").tools()
        with far_away(folder, flags):
            it.says("far: The upstream is back")
            assert "delete_file" in it.at("far").tools()


@contextmanager
def far_away(folder: Path, flags: Sequence[str]) -> Iterator[Serving]:
    """A real upstream on a port that it keeps."""
    words = ["--deny", "^$", *flags, "--", *upstream("--tools", "read_file,delete_file")]
    with filtering(folder, words) as running:
        running.says("Saved:")
        yield running


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('deny = "a"\n[servers.a]\nurl = "http://127.0.0.1:1/mcp"', "Failed to connect"),
        (f"deny = 'nothing_like_it'\n[servers.a]\n{command('read_file')}", "matches no tool"),
        (f"deny = 'read'\n[servers.a]\n{command('read_file')}deny = 'no_such'", "a: The pattern"),
        (f"[servers.a]\n{command('read_file')}", "Nothing is denied"),
    ],
)
def test_with_strict_the_process_ends(text: str, said: str, tmp_path: Path) -> None:
    with serving(tmp_path, text, "--strict", report="Error: ") as it:
        assert it.process.wait(TIMEOUT) in (1, 2)
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
        it.reads(
            f"{first}deny = 'b'\n{second}rules = 'none.yaml'\n",
            "nothing has changed: second: Cannot read the rules file",
        )
        assert (one.tools(), two.tools()) == (["a", "b"], ["a", "b"])
        it.reads(f"{first}deny = 'b'\n{second}rules = 'rules.yaml'\n", "second: http")
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
        slow = (
            f'[servers.slow]\ncommand = ["{sys.executable}", "-c", "import time; time.sleep(60)"]'
        )
        text = f"{slow}\n[servers.far]\nurl = '{remote.url}'\n[servers.near]\n{command('a')}"
        with serving(tmp_path, text) as it:
            it.says("  slow: it is still starting")
            assert it.at("near").tools() == ["a"]
            assert "read_file" in it.at("far").tools()


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("deny = 'a'", (), "There is no server in"),
        ("[servers.a]\nurl = 'x'", ("--header", "A: b"), "There is no flag --header"),
        ("inspect = true\n[servers.a]\nurl = 'x'", (), "inspect does not work with serve"),
        ("stdio = true\n[servers.a]\nurl = 'x'", (), "stdio does not work with serve"),
        ("[servers.a]\nurl = 'x'\nheader = 'A: b'", ("--host", "0.0.0.0"), "everybody on the"),
        ("[servers.a]\nurl = 'x'\nurl = 'y'", (), "is not TOML"),
        ("[servers.a]\nurl = 'x'", ("--", "npx"), "npx"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(
    text: str, flags: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with serving(tmp_path, text, *flags, report="Error: ") as it:
        assert it.process.wait(TIMEOUT) == 2
        assert said in it.stderr
        assert len(it.stderr.splitlines()) == 2


def test_without_a_file_there_is_advice(tmp_path: Path) -> None:
    done = run("serve", home=tmp_path)
    assert (done.returncode, "There is no config file" in done.stderr) == (2, True)
    folder = tmp_path / ".config/mcp-tool-filter"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[servers.a]\n")
    done = run("serve", home=tmp_path)
    assert f"[servers.a] of {folder}/config.toml has no url and no command" in done.stderr


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


LOGINS = {
    "one": "same origin, sends iss",
    "other": "same origin",
    "old": "2025-03-26",
    "oldest": "2025-03-26, without metadata",
}


async def _show(url: str) -> None:
    await asyncio.to_thread(browse, url)


@contextmanager
def page_of(it: Serving, folder: Path) -> Iterator[Page]:
    address = it.says(r"Dashboard: (\S+)")[1]
    with browser(folder) as page:
        page.go(address)
        page.wait_for("Live", "Exposed tools")
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
        after = after.replace(
            "# the end of files", "# the end of files\nexcept = ['^delete_file$']"
        )
        assert it.file.read_text() == after
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
        at = Serving(it.process, it.log, it.file, port)
        own, others = (
            at.send("GET", "/metrics", b"", **headers).body.decode()
            for headers in ({"authorization": "Bearer t0ken"}, {})
        )
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
    page = Serving(it.process, it.log, it.file, port)
    cookie = page.send("GET", path).headers["set-cookie"].partition(";")[0]

    def change(name: str, **said: object) -> dict[str, Any]:
        answer = page.send("POST", f"/mcp/{name}", json.dumps(said).encode(), cookie=cookie)
        if answer.status != 200:
            raise KeyError(answer.status)
        return dict(answer.json())

    return change


def test_processes_end_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, f"[servers.a]\n{command('a')}") as it:
        it.at("a")
        task = Path(f"/proc/{it.process.pid}/task/{it.process.pid}/children")
        (child,) = map(int, task.read_text().split())
        it.process.terminate()
        assert it.process.wait(TIMEOUT) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
