"""By which other names clients can find the upstream."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from mcp_tool_filter.core.http.urls import UpstreamNames, may_lead_round
from mcp_tool_filter.core.upstream import target
from mcp_tool_filter.core.upstream.target import find_names, is_own_address


async def names_of(url: str) -> UpstreamNames:
    return await find_names(url)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost box.test # not.this\n192.0.2.7 tools.test alias.test\n\n")
    ipv6 = tmp_path / "if_inet6"
    ipv6.write_text("fd000000000000000000000000000002 04 40 00 82     eth0\n")
    ipv4 = tmp_path / "fib_trie"
    ipv4.write_text("  |-- 192.0.2.2\n     /32 host LOCAL\n  |-- 192.0.2.255\n    /32 link X\n")
    monkeypatch.setattr(target, "_HOSTS_FILE", hosts)
    monkeypatch.setattr(target, "_IPV4_ADDRESSES", ipv4)
    monkeypatch.setattr(target, "_IPV6_ADDRESSES", ipv6)


@pytest.mark.parametrize("url", ["http://localhost", "http://127.0.0.2", "http://[::1]"])
async def test_an_upstream_here_has_all_names_of_this_machine(url: str) -> None:
    names = await names_of(url)
    own = socket.gethostname()
    for host in (own, f"{own.partition('.')[0]}.local", "box.test", "192.0.2.2", "[fd00::2]"):
        assert may_lead_round(f"http://{host}/", names), host
    for host in ("127.0.0.1", "[::1]", "localhost", "host.docker.internal"):
        assert may_lead_round(f"http://{host}/", names), host
    for host in ("tools.test", "192.0.2.255", "not.this", "www.example"):
        assert not may_lead_round(f"http://{host}/", names), host


async def test_an_upstream_elsewhere_has_the_names_of_its_addresses() -> None:
    names = await names_of("https://192.0.2.7")
    for host in ("192.0.2.7", "tools.test", "alias.test"):
        assert may_lead_round(f"https://{host}/", names), host
    for host in ("localhost", "box.test", "192.0.2.2"):
        assert not may_lead_round(f"https://{host}/", names), host


async def test_an_upstreams_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(_loop: object, host: str, *_: object, **__: object) -> list[object]:
        assert host == "tools.test"
        return [(socket.AF_INET, 0, 0, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    assert may_lead_round("http://3221225991/", await names_of("http://tools.test"))


async def test_an_unresolvable_upstream_keeps_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: object, **__: object) -> list[object]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    monkeypatch.setattr(target, "_PATIENCE", 0.01)
    monkeypatch.setattr(target, "_HOSTS_FILE", Path("/does/not/exist"))
    assert (await names_of("http://tools.test")).hosts == {"tools.test"}


def test_addresses_of_this_machine_are_told_apart_from_others() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.77")
    assert not is_own_address("localhost")
