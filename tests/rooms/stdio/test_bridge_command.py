"""``mcp-tool-filter --port N -- CMD``: a command served over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT, free_port
from tests.rooms.stdio.relaying import text_in, written_in
from tests.rooms.stdio.served_command import (
    DENY,
    INITIALIZE,
    META,
    TOOLS,
    Served,
    data_in,
    served,
    served_by,
)
from tests.stdio_client import filtered, is_alive, upstream


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One filter for the tests that leave it as it was."""
    with served(tmp_path_factory.mktemp("home")) as one:
        assert one.has_children(0)  # the one that has listed the tools is gone
        yield one


@pytest.fixture
def client(serving: Served) -> Iterator[Served]:
    """A client with a session of its own."""
    one = serving.another()
    one.opens()
    yield one
    one.send("DELETE")


def test_the_report_names_the_command(serving: Served) -> None:
    said = serving.process.stderr()
    assert f"/mcp -> {upstream()[0]} " in said
    assert "Upstream: stdio-upstream 1, stdio, 2025-11-25" in said


def test_a_body_with_line_breaks_becomes_one_line(client: Served) -> None:
    body = json.dumps(json.loads(calling("read_file")), indent=2).replace("\n", "\r\n")
    assert text_in(client.post(body.encode()).json()) == "read_file"


def test_an_answer_that_takes_long_is_a_stream(client: Served) -> None:
    answer = client.post(calling("sleep", arguments='{"seconds":1.3}'))
    assert answer.headers["content-type"] == "text/event-stream"
    assert text_in(answer.events()[-1]) == "sleep"


def test_messages_before_an_answer_come_before_it(client: Served) -> None:
    said = client.post(calling("flood", arguments='{"messages":3}')).messages()
    assert [one.get("method") for one in said] == ["notifications/message"] * 3 + [None]


def test_a_request_of_the_command_reaches_the_client_on_its_stream(client: Served) -> None:
    with client.stream() as said, ThreadPoolExecutor() as aside:
        asked = aside.submit(client.calls, "ask")
        assert json.loads(next(said))["method"] == "roots/list"
        answer = b'{"jsonrpc":"2.0","id":"q1","result":{"roots":[]}}'
        assert client.post(answer).status == 202
        assert "roots" in text_in(asked.result())


def test_each_session_has_its_own_process(serving: Served) -> None:
    before = len(serving.children())
    one, other = serving.another(), serving.another()
    one.opens()
    other.opens()
    assert one.session != other.session
    assert len(serving.children()) == before + 2
    for client in (one, other):
        assert client.send("DELETE").status == 200
    assert serving.has_children(before)
    assert one.post(asking("ping")).status == 404


def test_a_crash_ends_its_own_session_only(serving: Served) -> None:
    one, other = serving.another(), serving.another()
    one.opens()
    other.opens()
    crashed = one.calls("crash", id="9")
    error = {"code": -32000, "message": "Upstream connection lost"}
    assert crashed == {"jsonrpc": "2.0", "id": 9, "error": error}
    assert one.post(asking("ping")).status == 404
    assert text_in(other.calls("read_file")) == "read_file"
    assert "ended with exit code 3" in serving.process.said_on_stderr("exit code 3")
    other.send("DELETE")


@pytest.mark.parametrize(("method", "path", "session", "status"), [
    ("POST", "/mcp", None, 400), ("POST", "/mcp", "unknown", 404), ("GET", "/mcp", None, 400),
    ("DELETE", "/mcp", "unknown", 404), ("PUT", "/mcp", None, 405), ("POST", "/other", None, 404),
    ("POST", "/messages?sessionId=unknown", None, 404),
])  # fmt: skip
def test_a_request_without_a_session_is_refused(
    serving: Served, method: str, path: str, session: str | None, status: int
) -> None:
    client = serving.another()
    client.session = session
    body = asking("ping") if method == "POST" else b""
    assert client.send(method, path, body).status == status


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
def test_host_and_origin_are_checked(serving: Served, headers: dict[str, str]) -> None:
    assert serving.another().post(INITIALIZE, **headers).status == 403


@pytest.mark.parametrize("flags", [(), ("--record", "session.flow")])
def test_the_only_open_port_is_the_clients(flags: tuple[str, ...], tmp_path: Path) -> None:
    """A program that finds another port could call denied tools. None is open at any time."""
    command, public = upstream(*TOOLS, "--slow", "0.5"), free_port()
    words = [str(tmp_path / one) if one.endswith(".flow") else one for one in flags]
    seen = set()
    with filtered(*DENY, *words, "--port", str(public), "--", *command, home=tmp_path) as process:
        while "Saved:" not in process.stderr():
            seen |= listening_ports(process.process.pid)
        client = Served(public, process)
        client.opens()
        assert text_in(client.calls("read_file")) == "read_file"
        assert client.calls("delete_file")["error"]["code"] == -32601
        seen |= listening_ports(process.process.pid)
        assert seen == {public}


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link))}
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {int(one[1].split(":")[1], 16) for one in fields if one[3] == "0A" and one[9] in inodes}


def test_the_older_transport_works(serving: Served) -> None:
    client = serving.another()
    before = len(serving.children())
    with client.stream("/sse") as said:
        endpoint = next(said)
        assert endpoint.startswith("/messages?sessionId=")
        for message in (INITIALIZE, asking("tools/list", id="2"), calling("delete_file", id="3")):
            assert client.send("POST", endpoint, message).status in (200, 202)
        heard = {one["id"]: one for one in (json.loads(next(said)) for _ in range(3))}
        assert heard[1]["result"]["serverInfo"]["name"] == "stdio-upstream"
        assert "delete_file" not in [tool["name"] for tool in heard[2]["result"]["tools"]]
        assert heard[3]["error"]["message"] == "Tool not found: delete_file"
        assert len(serving.children()) == before + 1
    assert serving.has_children(before)


def test_stateless_clients_share_a_command_but_no_ids(tmp_path: Path) -> None:
    with served(tmp_path, "--modern") as serving:
        body, headers = stateless("server/discover", 1)
        found = serving.post(body, **headers).json()
        assert found["result"]["supportedVersions"] == ["2026-07-28"]
        for id in ("a", 1, "a"):
            body, headers = stateless("tools/call", id, name="read_file")
            assert serving.post(body, **headers).json()["id"] == id
        assert serving.has_children(1)


def stateless(method: str, id: object, **params: object) -> tuple[bytes, dict[str, str]]:
    """A request of 2026-07-28, and its headers."""
    meta = json.loads(f"{{{META % ''}}}")["_meta"] | {"progressToken": f"token-{id}"}
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = str(params["name"])
    return json.dumps(body).encode(), headers


PROGRESSING = """
import json, os, sys, threading, time
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def finish(id):
    open(sys.argv[1] + ".called", "w").write("yes")
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    say(id=id, result={"resultType": "complete", "content": []})
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params", {})
    if method == "server/discover":
        say(id=asked["id"], result={"resultType": "complete", "supportedVersions": ["2026-07-28"],
                                    "capabilities": {"tools": {}}})
    elif method == "tools/list":
        with open(sys.argv[3], "a") as lists:
            lists.write("1" * ("sampling" in line))
        say(id=asked["id"], result={"resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            "tools": [{"name": "work", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        token = params["_meta"]["progressToken"]
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
        say(method="notifications/message", params={"level": "info", "data": "half"})
        threading.Thread(target=finish, args=(asked["id"],), daemon=True).start()
    elif method == "notifications/cancelled":
        open(sys.argv[2], "w").write(line)
    elif "id" in asked:
        say(id=asked["id"], error={"code": -32601, "message": "Method not found"})
"""


@contextmanager
def progressing(home: Path) -> Iterator[Served]:
    program = home / "program.py"
    program.write_text(PROGRESSING)
    files = (str(home / name) for name in ("go", "cancelled", "listed"))
    command = (sys.executable, str(program), *files)
    with filtered(*DENY, "--port", "0", "--", *command, home=home) as process:
        one = served_by(process)
        for method in ("server/discover", "tools/list"):
            body, headers = stateless(method, 1)
            assert one.post(body, **headers).status == 200
        yield one


def test_progress_and_logs_of_a_stateless_request_come_as_they_happen(tmp_path: Path) -> None:
    with progressing(tmp_path) as serving:
        body, headers = stateless("tools/call", 7, name="work", arguments={})
        with serving.asking("POST", "/mcp", body, **headers) as response:
            said = map(json.loads, data_in(response))
            assert next(said)["params"] == {"progressToken": "token-7", "progress": 1}
            assert next(said)["params"]["data"] == "half"
            (tmp_path / "go").touch()
            assert next(said)["id"] == 7


def test_a_client_of_another_kind_gets_a_list_of_its_own(tmp_path: Path) -> None:
    """We ask the command for it as this client, before we decide on its call."""
    with progressing(tmp_path) as serving:
        (tmp_path / "go").touch()
        for name, is_there in (("nothing", False), ("work", True)):
            body, headers = stateless("tools/call", 7, name=name, arguments={})
            asked = json.loads(body)
            said_of_us = asked["params"]["_meta"]
            said_of_us["io.modelcontextprotocol/clientCapabilities"] = {"sampling": {}}
            said = serving.post(json.dumps(asked).encode(), **headers).messages()[-1]
            assert ("result" in said) is is_there
        assert (tmp_path / "listed").read_text().startswith("1")


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
def test_a_stateless_client_cancels_by_leaving(accept: str, tmp_path: Path) -> None:
    with progressing(tmp_path) as serving:
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=TIMEOUT)
        body, headers = stateless("tools/call", 7, name="work", arguments={})
        with closing(connection):
            connection.request("POST", "/mcp", body, serving.headers({**headers, "accept": accept}))
            written_in(tmp_path / "go.called")
        assert '"requestId"' in written_in(tmp_path / "cancelled")


def test_the_number_of_children_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path, words=("--max-children", "2")) as serving:
        clients = [serving.another() for _ in range(3)]
        clients[0].opens()
        clients[1].opens()
        with clients[1].stream():
            clients[2].opens()  # the first one is idle, and has to go
            assert clients[0].post(asking("ping")).status == 404
            with clients[2].stream():
                refused = serving.another().post(INITIALIZE)
                assert refused.status == 503
                assert "--max-children 2" in refused.json()["error"]["message"]
        assert len(serving.children()) <= 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_child_is_left_running(number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with served(tmp_path, "--grandchild", str(file)) as serving:
        for _ in range(3):
            serving.another().opens()
        children = [*serving.children(), int(file.read_text())]
        assert len(children) >= 4
        serving.process.process.send_signal(number)
        assert serving.process.ends() == 0
        assert not [pid for pid in children if is_alive(pid)]


def test_variables_and_folder_reach_the_command(tmp_path: Path) -> None:
    with served(tmp_path, words=("--env", "SECRET=s3cret", "-vv")) as serving:
        serving.opens()
        assert text_in(serving.calls("env", name="SECRET")) == "s3cret"
        assert "s3cret" not in serving.process.stderr()
