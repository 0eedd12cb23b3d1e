"""When the merged list changes: once, joined, and for every reason; and servers that are slow."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.bench.merged import accepts
from tests.proxy import REPOSITORY
from tests.raw_upstream import free_port
from tests.rooms.merged.newer_upstream import newer_upstream
from tests.rooms.merged.talking import Talking, rich, talking
from tests.rooms.serve.test_serve import board_of, command, serving
from tests.waiting import eventually


def hears_of_a_change(client: Talking) -> None:
    """Wait until the change is told; what was announced together is told once."""
    client.hears("tools/list_changed")
    client.ask("ping")


def hears_no_more(client: Talking) -> bool:
    """Tell whether nothing about a list comes in the time in which changes are joined."""
    time.sleep(0.5)
    with suppress(queue.Empty):
        while True:
            if b"list_changed" in client.news.get_nowait():
                return False
    return True


def test_a_switch_on_the_page_is_told_once_in_each_profile_that_it_changes(tmp_path: Path) -> None:
    text = (
        f"dashboard = 0\n[servers.one]\n{command('read,write')}[servers.two]\n{command('other')}"
        '[profiles.few]\nservers = ["two"]\n'
    )
    with serving(tmp_path, text) as it, talking(it) as client, talking(it, "/few/mcp") as few:
        assert client.names() == ["one_read", "one_write", "two_other"]
        assert few.names() == ["two_other"]
        edited = {"deny": ["^write$"], "except": []}
        assert board_of(it)("apply", server="one", **edited) == {"problem": ""}
        hears_of_a_change(client)
        assert client.names() == ["one_read", "two_other"]
        assert b"Tool not found: one_write" in client.call("one_write")
        assert hears_no_more(client)
        assert hears_no_more(few)


def test_a_file_that_is_read_again_is_told_only_if_the_list_differs(tmp_path: Path) -> None:
    one, two = f"[servers.one]\n{command('read')}", f"[servers.two]\n{command('other')}"
    with serving(tmp_path, one) as it, talking(it) as client:
        assert client.names() == ["one_read"]
        it.reads(f"# the same\n{one}", "one: SIGHUP: took a new list")
        assert hears_no_more(client)
        it.reads(one + two, "two: http")
        hears_of_a_change(client)
        assert client.names() == ["one_read", "two_other"]
        assert b"result" in client.call("two_other")
        it.reads(one, "two is not in the config file any more")
        hears_of_a_change(client)
        assert client.names() == ["one_read"]
        assert b"Tool not found: two_other" in client.call("two_other")


@contextmanager
def far_server(port: int) -> Iterator[None]:
    """Run a server in a process of its own, which is killed at the end."""
    words = [sys.executable, "-m", "tests.bench.merged", str(port)]
    with subprocess.Popen(words, cwd=REPOSITORY) as process:
        try:
            eventually(partial(accepts, port))
            yield
        finally:
            process.kill()


def test_a_server_that_goes_and_comes_back_is_told(tmp_path: Path) -> None:
    port = free_port()
    far = f'[servers.far]\nurl = "http://127.0.0.1:{port}/mcp"\n'
    with ExitStack() as stack:
        with far_server(port):
            it = stack.enter_context(serving(tmp_path, f"{far}[servers.one]\n{command('read')}"))
            it.says("far: http")
            client = stack.enter_context(talking(it))
            assert "far_tool_1" in client.names()
            assert b"result" in client.call("far_tool_1")
        lost = json.loads(client.call("far_tool_1"))
        assert lost["error"]["code"] == -32000
        assert b"result" in client.call("one_read")
        hears_of_a_change(client)
        assert client.names() == ["one_read"]
        with far_server(port):
            assert eventually(lambda: b"result" in client.call("far_tool_1"))
            hears_of_a_change(client)
            assert "far_tool_1" in client.names()


def test_changes_of_two_servers_at_once_are_one_notice(tmp_path: Path) -> None:
    text = "".join(
        f'[servers.{name}]\nnew-tools = "judge"\n{rich(name)}' for name in ("one", "two")
    )
    with serving(tmp_path, text) as it, talking(it) as client:
        client.names()
        client.call("one_echo")
        client.call("two_echo")
        with ThreadPoolExecutor(2) as both:
            list(both.map(client.call, ["one_change", "two_change"]))
        hears_of_a_change(client)
        assert {"one_later", "two_later"} <= set(client.names())


def test_a_server_that_hangs_delays_no_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        text = (
            f'[servers.hangs]\nurl = "http://127.0.0.1:{hanging.getsockname()[1]}/mcp"\n'
            f"[servers.one]\n{command('read')}"
        )
        with serving(tmp_path, text) as it, ThreadPoolExecutor(1) as aside:
            client = Talking(it.port, "/mcp").opens()
            hangs = Talking(it.port, "/mcp", session=client.session)
            waits = aside.submit(hangs.call, "hangs_a", id="500")
            assert client.names() == ["one_read"]
            assert b"result" in client.call("one_read", id="77")
            assert b"Tool not found: one_none" in client.call("one_none", id="78")
            assert not waits.done()
            it.process.terminate()
            with suppress(OSError, Exception):
                waits.result()


def test_a_list_that_hangs_delays_no_call_of_another_server(tmp_path: Path) -> None:
    with newer_upstream("slow") as remote:
        text = (
            f'[servers.slow]\nurl = "{remote.url}"\nnew-tools = "judge"\n'
            f"[servers.one]\n{command('read')}"
        )
        with serving(tmp_path, text) as it, ThreadPoolExecutor(1) as aside:
            it.says("slow: http")
            client = Talking(it.port, "/mcp").opens()
            remote.lists.clear()
            listed = aside.submit(Talking(it.port, "/mcp", session=client.session).names)
            assert b"result" in client.call("one_read", id="77")
            assert not listed.done()
            remote.lists.set()
            assert "one_read" in listed.result()


def test_a_list_that_was_begun_before_the_file_changed_shows_no_call_the_way(
    tmp_path: Path,
) -> None:
    """It ends when it has waited long enough, with what the file said when it began."""
    with newer_upstream("slow") as remote:
        servers = (
            f'[servers.slow]\nurl = "{remote.url}"\nnew-tools = "judge"\n'
            f"[servers.one]\n{command('read')}[profiles.few]\n"
        )
        with serving(tmp_path, servers) as it, ThreadPoolExecutor(1) as aside:
            it.says("slow: http")
            client = Talking(it.port, "/few/mcp").opens()
            remote.lists.clear()
            listed = aside.submit(Talking(it.port, "/few/mcp", session=client.session).names)
            time.sleep(1)
            assert not listed.done()
            it.reads(f'{servers}deny = ["^read$"]\n', "few: a new choice|one: SIGHUP")
            listed.result()
            assert b"Tool not found: one_read" in client.call("one_read", id="77")
            remote.lists.set()


def test_what_two_servers_claim_is_warned_of_once(tmp_path: Path) -> None:
    text = (
        f'[servers.one]\nprefix = "x_"\n{command("read,mine")}'
        f'[servers.two]\nprefix = "x_"\n{command("read")}[profiles.all]\n[profiles.again]\n'
    )
    with serving(tmp_path, text) as it, talking(it) as client, talking(it, "/again/mcp") as again:
        assert client.names() == again.names() == ["x_mine"]
        unknown = client.call("x_none").replace(b"none", b"read")
        assert client.call("x_read", id="1") == unknown.replace(b'"id":2', b'"id":1')
        said = "Warning: one and two both have the tool x_read: it is not shown"
        assert it.stderr.count(said) == 1
