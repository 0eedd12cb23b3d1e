"""``status``: all servers of the config file and of clients, and the filters that run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_tool_filter.cli.options import ENTRY
from mcp_tool_filter.rooms.status.running import running_filters
from tests.browser import browser
from tests.cli.launched import Typed
from tests.oauth_upstream import oauth_upstream
from tests.rooms.serve.test_serve import serving
from tests.rooms.status.test_running import base
from tests.rooms.stdio.relaying import names_in
from tests.rooms.stdio.served_command import Served
from tests.session_upstream import session_upstream
from tests.stdio_client import filtered, started, upstream
from tests.waiting import eventually

MEMBERS = (
    "name", "source", "target", "reachable", "exposed", "hidden", "dead_patterns", "lock", "login",
    "running",
)  # fmt: skip


__all__ = ("base",)  # a fixture


def write_config(home: Path, text: str) -> Path:
    file = home / ".config" / "mcp-tool-filter" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def ours(*words: str) -> dict[str, object]:
    return {"command": "mcp-tool-filter", "args": words}


def write_cursor(home: Path, file: str, **servers: object) -> None:
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    (home / file).write_text(json.dumps({"mcpServers": servers}))


type Rows = dict[tuple[str, str], dict[str, Any]]
type Status = Callable[..., Rows]


@pytest.fixture
def status_of(home: Path, base: Path, ran: Typed) -> Status:
    def status_of(*words: object, status: int = 0) -> Rows:
        out, err = ran("status", "--json", "--timeout", "3000", *words, status=status)
        assert (err, "s3cret" in out) == ("", False)
        rows = json.loads(out)
        assert all(set(MEMBERS) <= row.keys() for row in rows)
        return {(row["name"], row["source"]): row for row in rows}

    return status_of


def test_every_server_is_shown_with_what_is_known_of_it(
    home: Path, ran: Typed, typed: Typed, status_of: Status
) -> None:
    command = upstream("--tools", "read_file,delete_file")
    words = [*command, "--page", "0"]
    left, gone = home / "started-by-project", ["/none/such", "--token=s3cret"]
    evil = ["--deny", "x", "--", "touch", str(left)]
    with session_upstream() as server, oauth_upstream() as behind_login:
        file = write_config(
            home,
            'deny = ["^delete_", "^resume$", "^nowhere"]\n'
            f'[servers.files]\ncommand = {json.dumps(command)}\ndeny = ["^dead"]\n'
            f'[servers.sessions]\nurl = "{server.url}"\nheader = ["X-Key: s3cret"]\n'
            '[servers.lost]\nurl = "http://127.0.0.1:1/mcp?key=s3cret"\n'
            '[servers.unset]\nurl = "http://127.0.0.1:1/mcp"\nheader = ["X-Key: $NOT_SET"]\n'
            f'[servers.login]\nurl = "{behind_login.url}"\n',
        )
        write_cursor(home, ".cursor/mcp.json", wrapped={"command": words[0], "args": words[1:]})
        typed("wrap", "cursor", "wrapped", "--deny", "^read_", "--yes")
        write_cursor(
            home, ".codeium/windsurf/mcp_config.json", named=ours("--server", "files"),
            more=ours("--server", "files", "--deny", "^read_"),
            plain={"command": "npx", "args": ["x"]},
            gone_since_last_week=ours("--deny", "x", "--", *gone),
            unsafe=ours("--deny", "(a+)+", "--", *command),
        )  # fmt: skip
        write_cursor(home, "project/.cursor/mcp.json", evil=ours(*evil))
        rows = status_of(status=1)
        files = rows["files", "config.toml"]
        assert files["file"] == str(file)
        assert files["target"] == shlex.join(command)
        assert (files["reachable"], files["exposed"], files["hidden"]) == (True, 1, 1)
        assert files["dead_patterns"] == ["^nowhere", "^dead"], "^resume$ matches elsewhere"
        assert (files["lock"], files["login"], files["running"]) == (None, None, [])
        assert rows["sessions", "config.toml"]["dead_patterns"] == ["^nowhere"]
        for name, why in (("lost", "refused"), ("unset", "NOT_SET")):
            row = rows[name, "config.toml"]
            assert (row["reachable"], row["exposed"]) == (False, None)
            assert why in row["problem"]
        login = rows["login", "config.toml"]
        assert (login["reachable"], login["exposed"], login["login"]) == (True, None, "needed")
        wrapped = rows["wrapped", "cursor (user)"]
        assert (wrapped["reachable"], wrapped["exposed"], wrapped["hidden"]) == (True, 0, 2)
        named = rows["named", "windsurf (user)"]
        assert (named["target"], named["exposed"]) == (files["target"], 1)
        more = rows["more", "windsurf (user)"]
        assert (more["exposed"], more["hidden"]) == (0, 2), "it hides more than the file says"
        assert rows["gone_since_last_week", "windsurf (user)"]["reachable"] is False
        assert rows["evil", "cursor (project)"]["reachable"] is None
        unsafe = rows["unsafe", "windsurf (user)"]
        assert unsafe["reachable"] is False
        assert "catastrophic backtracking" in unsafe["problem"]
        assert unsafe["target"] == files["target"]
        assert rows["plain", "windsurf (user)"]["filtered"] == "no"
        together = rows["merged", "config.toml"]
        assert (together["reachable"], together["exposed"], together["running"]) == (None, 8, [])
        assert len(rows) == 13
        assert not left.exists()
        out, err = ran("status", "--timeout", "3000", status=1)
        assert "s3cret" not in out + err
        assert out.startswith("Cursor, Windsurf: ")
        assert re.search(r"\n  gone_since_last_week +Command not found: /none/such", out)
        assert re.search(r"\n  files +1 tool .*   1 hidden   1 dead   says", out)
        assert 'files: the pattern "^dead" matches no tool\n' in err
        nowhere = 'Warning: the pattern "^nowhere" matches no tool of those that answered\n'
        assert err.count("^nowhere") == err.count(nowhere) == 1
        assert f"login: mcp-tool-filter login {behind_login.url}" in err


def test_a_pattern_for_all_servers_is_dead_for_doctor_only_if_it_matches_nowhere(
    home: Path, ran: Typed
) -> None:
    one, two = (json.dumps(upstream("--tools", name)) for name in ("read", "drop"))
    tables = f"[servers.one]\ncommand = {one}\n[servers.two]\ncommand = {two}\n"
    file = write_config(home, f'deny = ["^drop"]\n{tables}')
    assert "is for all servers, and matches at others" in ran("doctor", "--server", "one").out
    file.write_text(f'deny = ["^nowhere"]\n{tables}')
    said = ran("doctor", "--server", "one", status=1).out
    assert 'FAIL The pattern "^nowhere" matches no tool' in said


@pytest.mark.rest
def test_a_server_that_hangs_delays_no_other(home: Path, status_of: Status) -> None:
    """They are asked at the same time: one after the other would take longer than we wait."""
    time = f"300.{os.getpid()}"  # no other process sleeps so long
    tables = [f'[servers.s{n}]\ncommand = ["sleep", "{time}"]\n' for n in range(24)]
    write_config(home, "".join(tables))
    rows = status_of(status=1)
    problems = {row["problem"] for (name, _), row in rows.items() if name != "merged"}
    assert problems == {"Connection timeout after 3000ms"}
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert f"sleep {time}" not in left.stdout


def test_without_servers_all_is_well(ran: Typed, status_of: Status) -> None:
    assert status_of() == {}
    out, err = ran("status")
    assert (out, "There is no server" in err) == ("", True)


def test_running_filters_are_joined_with_servers(home: Path, base: Path, status_of: Status) -> None:
    command = upstream("--tools", "read_file,delete_file")
    log = home / "audit.jsonl"
    write_config(home, f"[servers.files]\ncommand = {json.dumps(command)}\n")
    with ExitStack() as stack:
        flags = ["--audit-log", str(log)]
        one = stack.enter_context(filtered("--server", "files", *flags, home=home))
        flags += ["--deny", "^delete", "--", *command, "--page", "0"]
        two = stack.enter_context(filtered(*flags, home=home))
        for client in (one, two):
            client.opens()
            client.asks("tools/list")
            client.calls("delete_file")
        eventually(lambda: len(running_filters()) == 2)
        rows = status_of()
        [first] = [said] = rows["files", "config.toml"]["running"]
        assert (said["pid"], said["calls"], said["refused"]) == (one.process.pid, 1, 0)
        other = rows["stdio-upstream 1", "running"]
        assert (other["exposed"], other["hidden"], other["reachable"]) == (1, 1, None)
        [said] = other["running"]
        assert (said["pid"], said["refused"]) == (two.process.pid, 1)
        logs = sorted([first["audit_log"], said["audit_log"]])
        assert logs == [str(log), *map(str, home.glob("audit.jsonl.pid*"))], "each its own part"
        two.process.kill()
        two.ends()
        assert [key for key in status_of() if key[1] == "running"] == []
        assert len(os.listdir(base / "mcp-tool-filter")) == 1


def test_an_entry_gets_only_the_filters_that_it_has_started(
    home: Path, base: Path, typed: Typed, ran: Typed, status_of: Status
) -> None:
    """Another process may have the same command line, or serve the same command."""
    command = upstream("--tools", "read_file,delete_file,env")
    like = {"command": command[0], "args": command[1:]}
    file = home / ".cursor" / "mcp.json"
    write_cursor(home, ".cursor/mcp.json", files=like, same=like, moved=like)
    before = file.read_text()
    for name in ("files", "same"):
        typed("wrap", "cursor", name, "--deny", "^delete", "--yes")
    into = home / "team.toml"
    typed("wrap", "cursor", "moved", "--into", into, "--yes")
    other = home / "other.toml"
    other.write_text(into.read_text())
    entries = json.loads(file.read_text())["mcpServers"]
    with ExitStack() as stack:
        for name in ("files", "moved"):
            one = entries[name]
            words = [one["command"], *one["args"]]
            alone = stack.enter_context(started(*words, home=home))
            client = stack.enter_context(started(*words, home=home, environment=one["env"]))
            for each in (alone, client):
                each.opens()
            assert "env" in names_in(client.asks("tools/list"))
            said = json.dumps(client.calls("env", name=ENTRY))
            assert one["env"][ENTRY] not in said, "a filter within the command is another one"
        stack.enter_context(filtered("--config", str(other), "--server", "moved", home=home))
        eventually(lambda: len(running_filters()) == 5)
        rows = status_of("--config", into)
        runs = {name: len(row["running"]) for (name, source), row in rows.items() if row["clients"]}
        assert runs == {"files": 1, "same": 0, "moved": 1}
        assert len(rows["moved", "team.toml"]["running"]) == 2, "both serve this section"
        screen = {row["name"]: len(row["running"]) for row in json.loads(ran("--json").out)}
        assert screen == runs
    typed("unwrap", "--all", "--yes")
    assert file.read_text() == before


def test_what_one_process_serves_is_joined_by_name(home: Path, status_of: Status) -> None:
    """Two servers of the file are the same command: their names tell them apart."""
    command = json.dumps(upstream("--tools", "read_file,delete_file"))
    with session_upstream() as server:
        text = (
            f"[servers.a]\ncommand = {command}\n[servers.b]\ncommand = {command}\n"
            f'deny = ["^delete_"]\n[servers.c]\nurl = "{server.url}"\n'
            '[servers.lost]\nurl = "http://127.0.0.1:1/mcp"\n'
        )
        write_config(home, text)
        with serving(home, text) as served:
            served.at("b").calls("read_file")
            served.at("c").calls("read_file")
            served.at("c").calls("nothing")
            eventually(running_filters)
            rows = status_of("--config", served.file, status=1)
            of = {name: rows[name, served.file.name]["running"] for name in ("a", "b", "c", "lost")}
            assert of["lost"] == []
            said = {name: one[0] for name, one in of.items() if one}
            assert {one["pid"] for one in said.values()} == {served.process.pid}
            counts = {name: (one["calls"], one["refused"]) for name, one in said.items()}
            assert counts == {"a": (0, 0), "b": (1, 0), "c": (1, 1)}
            assert said["b"]["listens_at"] == f"http://127.0.0.1:{served.port}/b/mcp"
            assert (said["a"]["hidden"], said["b"]["hidden"]) == (0, 1)
            [whole] = rows["merged", served.file.name]["running"]
            assert (whole["pid"], whole["hidden"]) == (served.process.pid, 0)
        assert running_filters() == []


EVIL = "<img/src=x/onerror=document.title='owned'>"


def test_one_page_shows_and_switches_all_running_filters(
    home: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stdio server, one over HTTP that has no page of its own, one of a config file. Behind a
    token, like each dashboard; names of tools are text."""
    command = upstream("--tools", f"read_file,write_file,{EVIL}")
    file = write_config(home, f"[servers.filed]\ncommand = {json.dumps(upstream())}\n")
    with ExitStack() as stack:
        url = stack.enter_context(session_upstream()).url
        client = stack.enter_context(filtered("--deny", "^delete_", "--", *command, home=home))
        filed = stack.enter_context(filtered("--server", "filed", home=home))
        flags = ("-u", url, "--port", "0", "-d", "^delete_", "--log-format", "none")
        http = stack.enter_context(filtered(*flags, home=home))
        port = int(
            cast("re.Match[str]", re.search(r"127.0.0.1:(\d+)", http.said_on_stderr(" ->")))[1]
        )
        filed.opens()
        filed.asks("tools/list")
        client.opens()
        client.asks("tools/list")
        client.calls("read_file")  # before anybody looks
        client.calls("delete_file")
        shows = stack.enter_context(filtered("status", "--open", "--no-browser", home=home))
        found = re.search(r"Dashboard: (http://127.0.0.1:(\d+)/\S+)\n", shows.said_on_stderr("\n"))
        assert found
        eventually(lambda: len(running_filters()) == 3)
        for path in ("/mcp/running", f"/mcp?token={'x' * 32}"):
            assert Served(int(found[2]), shows).send("GET", path).status == 403
        page = stack.enter_context(browser(home))
        page.go(found[1])
        page.wait_for("Live", "stdio-upstream 1", "filed", url.split("/")[2])
        page.wait_for("tools/call read_file", "tools/call delete_file", "refused (^delete_)")
        served = Served(port, http)
        served.opens()
        served.calls("search")
        page.wait_for("tools/call search")
        client.calls("write_file")
        page.wait_for("tools/call write_file")
        page.run(CLICK_MESSAGE, "write_file")
        page.wait_for("Request", "Answer", '"name": "write_file"')
        page.find("#tab-tools").click()
        page.wait_for(EVIL)
        page.find("button[aria-label='Hide write_file of stdio-upstream 1']").click()
        page.wait_for("1 tool to hide, 0 to show")
        page.find("button[aria-label='Apply the changes of stdio-upstream 1']").click()
        page.wait_for("Now active")
        assert "write_file" not in names_in(client.asks("tools/list"))
        assert "error" in client.calls("write_file")
        page.find("button[aria-label='Hide delete_file of filed']").click()
        page.find("button[aria-label='Apply the changes of filed']").click()
        page.find("button[aria-label='Save the patterns of filed']").click()
        page.wait_for("This changes in", "+deny = ['^delete_file$']")
        page.find("button[aria-label='Write the file of filed']").click()
        page.wait_for("Saved in")
        assert file.read_text().endswith("deny = ['^delete_file$']\n")
        assert page.run("return document.title") == "MCP tool filter"
        assert page.errors() == []
        client.leaves()
        page.find(".server.ended")
        filed.leaves()
        http.process.terminate()
        page.wait_for("No filter is running.")
        shows.process.terminate()
        assert shows.ends() == 0


CLICK_MESSAGE = """
const rows = [...document.querySelectorAll(".rows .message")];
rows.find((one) => one.innerText.includes(arguments[0])).click();
"""
