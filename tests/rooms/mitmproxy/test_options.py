"""Options at the start and while mitmproxy runs: ours, mitmproxy's own, and several listeners.

No filter starts open, or becomes open, because of a slip: the same in every host.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy import optmanager
from mitmproxy.addonmanager import Loader
from mitmproxy.addons import default_addons
from mitmproxy.exceptions import OptionsError
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow

from mcp_tool_filter.cli.options import GONE
from mcp_tool_filter.cli.settings import Settings, read_settings
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import Target
from mcp_tool_filter.rooms.mitmproxy import addon
from mcp_tool_filter.rooms.mitmproxy import options as ours
from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.cli.launched import launched, run
from tests.filtered import call, filtered, not_found
from tests.hosts import HOSTS, LAUNCHER, MITMDUMP, filtering, mitmdump
from tests.mcp_upstream import RESULT, mcp_upstream, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as started
from tests.raw_client import post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, free_port, raw_upstream, until
from tests.rows import each_row

TOOLS = [tool("read_file"), tool("rm_rf")]
FINE = post(call("read_file"))
WARNING = "Warning: nothing is denied: there is no deny or allow pattern\n"
NO_PATTERN = "has no pattern\nGive a pattern, or leave it out; "
EMPTY = f"Error: deny {NO_PATTERN}to deny nothing on purpose, use (?!), "


@each_row(("words", "said"), [
    (["deny"], EMPTY),
    (["allow"], f"Error: allow {NO_PATTERN}to allow every tool on purpose, use ^, "),
    (["allow", "deny=^rm"], f"Error: allow {NO_PATTERN}"),
    (["deny", "deny=^rm"], f"Error: --set deny {NO_PATTERN}"),
    (["deny="], 'Error: Invalid regex pattern in deny list: ""\n'),
    (["deny=^rm", "allow=,"], 'Error: Invalid regex pattern in allow list: ""\n'),
    (["deny= "], 'Error: Blank pattern in deny list: " "\n'),
    (["lock="], "Error: Invalid value for --set lock: ''\nName a file, or leave it out"),
    (["deny=^rm", "rules"], "Error: Invalid value for --set rules: ''\n"),
    (["deny=^rm,\t"], 'Error: Blank pattern in deny list: "\t"\n'),
    (["deny_hint=opn-world"], "Error: Invalid value for deny_hint: 'opn-world'\nDid you"),
    (["read_only"], "Error: Invalid value for read_only: ''\nWrite read_only=true or"),
    (["strict"], "Error: Invalid value for strict: ''\nWrite strict=true or strict=false"),
    ("deny: []", EMPTY), ("deny: ['']", "Error: "), ("allow: []", "Error: "),
])  # fmt: skip
def test_an_option_without_its_value_is_an_error(words: list[str] | str, said: str) -> None:
    """In what is typed, and in mitmproxy's configuration file."""
    with pytest.raises((StartError, OptionsError)) as caught:
        read(words)
    assert str(caught.value).startswith(said)


def read(words: list[str] | str) -> None:
    """Read options that are typed, or in a file, as mitmdump and our addon do."""
    options = Options()
    master: Any = SimpleNamespace(options=options)
    ours.declare_options(Loader(master))
    if isinstance(words, str):
        optmanager.load(options, words)
    else:
        options.set(*words)
    ours.ConfigReader().read(options)
    typed = [word for text in words for word in ("--set", text)]
    if problem := ours.overruled_option(options, typed):
        raise problem


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(("name", "words"), [("mitmdump", ["--set=deny"]), ("mitmweb", [])])
async def test_an_empty_list_stops_the_start(name: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("" if words else "deny: []")
    async with mitmdump(*words, name=name, home=tmp_path) as it:
        assert await it.exit_code() == 1
        assert EMPTY in it.stderr


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("words", [["mitmdump", "-q"], ["mitmweb"]], ids=str)
async def test_a_host_without_any_pattern_warns_once(words: list[str], tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        other = f"--mode=reverse:{upstream.url}@127.0.0.1:{free_port()}"
        name, *more = words
        async with mitmdump(other, *more, to=upstream.url, name=name, home=tmp_path) as it:
            await it.says("nothing is denied")
            it.interrupt()
            assert await it.exit_code() == 0
            assert (it.stdout + it.stderr).count(WARNING) == 1


WITH = "With the option strict, "
NONE = "Error: Nothing is denied: there is no deny or allow pattern\n"
STRICT = f"{NONE}{WITH}there must be at least one\n"
UNMATCHED = f'Error: The pattern "^no" matches no tool\n{WITH}every pattern must match a tool\n'


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("way", ["--port=0", "--stdio", "--list-tools", "--dry-run", MITMDUMP])
@pytest.mark.parametrize(
    ("words", "said"), [([], STRICT), (["deny=^rm", "allow=^no"], UNMATCHED)], ids=str
)
async def test_strict_applies_to_every_way_to_start(
    way: str, words: list[str], said: str, tmp_path: Path
) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        if way == MITMDUMP:
            async with mitmdump("strict=true", *words, to=upstream.url, home=tmp_path) as it:
                status, stderr = await it.exit_code(), it.stderr
        else:
            flags = ["-u", f"{upstream.url}/mcp", "--strict", *(f"--{one}" for one in words), way]
            ended = await asyncio.to_thread(run, *flags, home=tmp_path)
            status, stderr = ended.returncode, ended.stderr
            assert ended.stdout == ""
    assert status == 1
    assert stderr.endswith(said)


async def test_strict_accepts_patterns_that_match(tmp_path: Path) -> None:
    words = ("strict=true", "deny_glob=rm_*", "deny=^RM", "ignore_case=true")
    async with filtering(LAUNCHER, tmp_path, *words, tools=TOOLS) as it:
        assert "Warning" not in it.stderr


ODD = {
    "^no": 'Warning: the pattern "^no" matches no tool\n',
    "rm_*": 'Warning: the pattern "rm_*": _* matches any number of _, even none; ',
    "/^rm/i": 'Warning: the pattern "/^rm/i": Slashes are part of the pattern; ',
}


@pytest.mark.parametrize(("denied", "warnings"), [(ODD, ODD.values()), ({}, [WARNING])], ids=len)
async def test_warnings_about_patterns_are_shown_even_if_quiet(
    denied: dict[str, str], warnings: list[str], tmp_path: Path
) -> None:
    words = [word for pattern in denied for word in ("--deny", pattern)]
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-qu", f"{upstream.url}/mcp", *words, home=tmp_path) as it,
    ):
        for warning in warnings:
            await it.says(re.escape(warning))
        it.interrupt()
        assert await it.exit_code() == 0
        assert [it.stderr.count(warning) for warning in warnings] == [1] * len(warnings)
        assert "MCP tool filter: " not in it.stderr


def reset(options: Options, name: str) -> None:
    options._options[name].reset()
    options.changed.send(updated={name})


@pytest.mark.parametrize(("option", "edit"), [
    ("deny", lambda options: options.update(deny=[])),
    ("deny", lambda options: options.update(deny=[""])),
    ("deny", lambda options: options.update(deny=[" "])),
    ("deny", lambda options: reset(options, "deny")),
    ("allow", lambda options: options.update(allow=[])),
    ("allow", lambda options: reset(options, "allow")),
], ids=["none", "empty", "blank", "reset", "allow none", "allow reset"])  # fmt: skip
async def test_an_edit_that_removes_the_last_pattern_is_refused(
    option: str, edit: Callable[[Options], None], tmp_path: Path
) -> None:
    """The filter that was in force stays. A pattern that matches no name is meant."""
    given: dict[str, Any] = {"deny": None, option: {"deny": ["^rm"], "allow": ["^read"]}[option]}
    async with filtered(tmp_path, tools=TOOLS, **given) as it:
        assert await it.exposed() == ["read_file"]
        with pytest.raises(OptionsError, match=r"no pattern|pattern in deny list"):
            edit(it.proxy.master.options)
        assert await it.exposed() == ["read_file"]
        it.set(allow=["^"], deny=["(?!)"])
        assert await it.exposed() == ["read_file", "rm_rf"]


def knowing(settings: Settings) -> ToolFilter:
    return ToolFilter(config_reader=ours.ConfigReader(settings.texts, settings.config()))


async def test_options_that_differ_from_the_checked_ones_are_checked_again(tmp_path: Path) -> None:
    """What is known of some flags says nothing about other ones."""
    known = knowing(read_settings(["-u", "http://localhost", "--deny", "^rm"], {}))
    async with filtered(tmp_path, addon=known, tools=TOOLS, deny=["^read"]) as it:
        assert await it.exposed() == ["rm_rf"]


async def test_an_edit_keeps_the_allow_list_of_all_servers(tmp_path: Path) -> None:
    """It is no option of mitmproxy's: a change of any other lost it."""
    known = replace(read_settings(["-u", "x", "--allow", "r"], {}), allow_too=("^read",))
    async with filtered(
        tmp_path, addon=knowing(known), tools=TOOLS, allow=["r"], deny=["^delete_"]
    ) as it:
        before = await it.exposed()
        it.set(deny=["^nothing"])
        assert await it.exposed() == before
        assert all(name.startswith("read") for name in before)


# mitmproxy's options: which are refused, which are changed, and what a user has set stays.


async def stock_options(**given: object) -> Options:
    """What mitmdump knows, and a user has set."""
    master = Master(Options())
    master.addons.add(*default_addons())
    master._legacy_log_events.uninstall()
    master.options.update(**given)
    return master.options


@pytest.mark.parametrize("name", ["ignore_hosts", "allow_hosts", "tcp_hosts", "udp_hosts"])
async def test_an_option_that_allows_a_bypass_is_refused(name: str) -> None:
    refusal = ours.problem_in_options(await stock_options(**{name: ["localhost"]}))
    assert str(refusal).startswith(f"Error: Invalid value for {name}: ['localhost']\n")


async def test_the_user_hears_once_which_options_have_no_effect() -> None:
    options = await stock_options(stream_large_bodies="10m", websocket=False, modify_body=["/a/b"])
    assert ours.problem_in_options(options) is None
    said = "Warning: stream_large_bodies, websocket have no effect"
    assert ours.idle_options(options).startswith(said)
    assert ours.idle_options(await stock_options(rawtcp=True)) == ""


@pytest.mark.parametrize("name", GONE)
def test_an_option_that_is_gone_is_refused_with_what_to_do_instead(name: str) -> None:
    key = name.replace("-", "_")
    said = f"Error: There is no option {key} any more\n{GONE[name]}"
    assert str(ours.unknown_option([key])) == said


async def test_harmless_options_are_left_to_the_user() -> None:
    given = await stock_options(
        listen_port=None, rawtcp=True, show_ignored_hosts=True, map_remote=["|a|b"],
        modify_headers=["/~q/Authorization/Bearer x"], body_size_limit="1m", keep_host_header=True,
        http2=False,
    )  # fmt: skip
    assert ours.problem_in_options(given) is None


async def test_quiet_streams_live_for_a_year_unless_the_user_has_set_it() -> None:
    """Even if that is the default."""
    changed = await stock_options()
    default = changed.tcp_timeout
    ours.keep_quiet_streams_alive(changed)
    assert (changed.tcp_timeout, changed.connection_strategy) == (365 * 24 * 3600, "lazy")
    given = await stock_options(tcp_timeout=default, connection_strategy="eager")
    assert ours.was_set(given, "tcp_timeout")
    assert not ours.was_set(given, "listen_host")
    ours.keep_quiet_streams_alive(given)
    assert (given.tcp_timeout, given.connection_strategy) == (default, "eager")
    given.update(mode=[MODE])  # there, it would close each connection
    ours.keep_quiet_streams_alive(given)
    assert (given.tcp_timeout, given.connection_strategy) == (default, "lazy")


MODE = "reverse:http://127.0.0.1:1"


def test_remote_clients_from_before_the_rebind_are_refused() -> None:
    """mitmdump listens everywhere before it loads a script."""
    loopback = ours.Loopback()
    loopback.load(Options())
    for peer, is_refused in (("127.0.0.1", False), ("::1", False), ("192.0.2.1", True)):
        client = tflow.tclient_conn()
        client.peername, client.proxy_mode = (peer, 1), ProxyMode.parse(MODE)
        client.error = None
        loopback.client_connected(client)
        assert bool(client.error) is is_refused


def own_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(sock.getsockname()[0])


@pytest.mark.parametrize(("address", "given", "is_served"), [
    ("", [], False), ("", ["--listen-host", ""], True), ("", ["--listen-host", "0.0.0.0"], True),
    ("@0.0.0.0:PORT", [], True),
])  # fmt: skip
async def test_only_the_loopback_is_listened_on_unless_the_user_names_an_address(
    address: str, given: list[str], is_served: bool, tmp_path: Path
) -> None:
    port = free_port()
    words = ["--listen-port", str(port), "deny=^rm", *given]
    async with mcp_upstream(tools=TOOLS) as upstream:
        to = upstream.url + address.replace("PORT", str(port))
        async with mitmdump(*words, to=to, home=tmp_path, listen_host=None) as it:
            await it.says("MCP tool filter: ")
            async with raw_client(port) as client:
                assert (await client.ask(FINE)).body == RESULT
            with socket.socket() as other:
                assert (other.connect_ex((own_address(), port)) == 0) is is_served


# One listener for each upstream, ready before the first client is served.


async def test_requests_wait_until_the_tools_are_known(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slowly(target: Target) -> Fetched:
        await gate.wait()
        return await fetch(target)

    async with filtered(tmp_path, addon=ToolFilter(fetch=slowly)) as it:
        await it.client.say(post(call("delete_file")))
        await asyncio.sleep(0.05)
        gate.set()
        assert (await it.client.answer()).body == not_found("delete_file")
        assert it.upstream.asked == []


# What a start refuses, and edits of the options while mitmproxy runs.

EDITS = """
import asyncio, logging
from mitmproxy import ctx, exceptions

async def edit():
    await asyncio.sleep(0.5)
    try:
        ctx.options.update(**{edit!r})
    except exceptions.OptionsError:
        logging.info("it was refused")
    await asyncio.sleep(0.2)
    logging.info("all is over")

def running():
    global task
    task = asyncio.create_task(edit())
"""


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("edit", [
    {"mode": ["reverse:tcp://127.0.0.1:1@127.0.0.1:0"]},
    {"mode": [f"{MODE}@127.0.0.1:0"], "deny": ["(unclosed"]},
    {"mode": [f"{MODE}@127.0.0.1:0"], "ignore_hosts": ["."]},
], ids=["mode", "mode and a pattern", "mode and a danger"])  # fmt: skip
async def test_refused_edits_close_no_listener(edit: dict[str, list[str]], tmp_path: Path) -> None:
    """mitmproxy would close the old listeners, and open them again some 50 ms later."""
    script = tmp_path / "edits.py"
    script.write_text(EDITS.format(edit=edit))
    words = ("-s", str(script), "endpoint=/mcp", "deny=^wipe")
    async with filtering(MITMDUMP, tmp_path, *words, tools=TOOLS) as on:
        await on.it.says("it was refused")
        await on.it.says("all is over")
        assert "stopped" not in on.it.stdout
        async with raw_client(on.port) as client:
            assert (await client.ask(FINE)).body == RESULT


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(("words", "said"), [
    ((), "Error: There is no --mode\n--mode reverse:http://host:port filters"),
    (("--mode", MODE, "--set", "deny=(a+)+"), "Error: Unsafe regex"),
], ids=["no mode", "a wrong option"])  # fmt: skip
async def test_a_start_that_must_fail_never_listens(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """mitmproxy would listen to every address. Here its port is taken: it would complain."""
    with socket.create_server(("", 0)) as taken:
        port = ("--listen-port", str(taken.getsockname()[1]))
        start = started(MITMDUMP, "-s", SCRIPT, *port, *words, home=tmp_path, listen_host=None)
        async with start as it:
            assert await it.exit_code() == 1
            assert it.stderr.startswith(said)
            assert "in use" not in it.stdout + it.stderr


@pytest.mark.parametrize("host", HOSTS)
async def test_a_client_may_come_or_leave_during_the_start(host: str, tmp_path: Path) -> None:
    """It waits until the tools are known. (mitmproxy said that it has crashed.)"""
    may_answer, port = asyncio.Event(), free_port()

    async def script(peer: Peer) -> None:
        await peer.request()
        await may_answer.wait()
        peer.close()

    async with raw_upstream(script) as slow:
        flags = ("-u", slow.url, "--deny", "^rm_", "--port", str(port))
        in_mitmdump = mitmdump("deny=^rm_", to=f"{slow.url}@{port}", home=tmp_path)
        async with in_mitmdump if host == MITMDUMP else launched(*flags, home=tmp_path) as it:
            it.port = port
            await slow.asked(1)
            await it.listening()
            async with raw_client(port) as client:
                await client.say(FINE)
            may_answer.set()
            assert await it.exit_code() == 1
            assert "crashed" not in it.stderr + it.stdout


# Clients that stay silent


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ([], b""),
        ([], b"\x16\x03\x01\x02\0\x01"),
        (["regular"], b""),
        (["regular"], b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n"),
    ],
    ids=["nothing", "half a TLS handshake", "nothing to a proxy", "nothing in a tunnel"],
)
async def test_a_client_that_stays_silent_is_disconnected(
    tmp_path: Path, modes: list[str], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not know it yet, and mitmproxy would wait for a year."""
    monkeypatch.setattr(addon, "_SECONDS_BETWEEN_TICKS", 0.02)
    hosts = ["127.0.0.1"]
    async with filtered(tmp_path, to=modes, hosts=hosts) as it, raw_client(it.port) as other:
        await it.client.say(said)
        if said.startswith(b"CONNECT"):
            assert b" 200 " in await it.client.head()
        await other.say(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nslowly")
        seats = it.addon.proxy.crowd.seats
        await until(lambda: len(seats) >= 2)
        clock = seats.clock
        monkeypatch.setattr(seats, "clock", lambda: clock() + 121)
        async with asyncio.timeout(TIMEOUT):
            assert await it.client.reader.read() == b""
        assert not other.reader.at_eof()  # the engine waits for its body
