"""Real clients log in through us, with a scripted browser, wherever the authorization server is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.end_to_end.peer import INSTALLED, NODE, SCRIPTS, need
from tests.oauth_upstream import OAuthUpstream, oauth_upstream
from tests.proxy import RunningProxy, proxy

PLACES: dict[str, dict[str, Any]] = {
    "same origin": {},
    "other origin, any audience": {"elsewhere": True, "binds_audience": False},
    "other origin": {"elsewhere": True},
    "other origin, sends iss": {"elsewhere": True, "sends_issuer": True},
    "same origin, sends iss": {"sends_issuer": True},
    "2025-03-26": {
        "has_resource_metadata": False,
        "binds_audience": False,
        "challenge": 'Bearer error="invalid_token"',
    },
    "2025-03-26, without metadata": {
        "has_resource_metadata": False,
        "has_server_metadata": False,
        "binds_audience": False,
        "challenge": "Bearer",
    },
}
CLIENTS = ("mcp1", "mcp2", "ts1")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations are kept in the user's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@asynccontextmanager
async def through(
    home: Path, upstream: OAuthUpstream, **options: Any
) -> AsyncIterator[RunningProxy]:
    given = {"deny": ["^delete_"], "endpoint": ["/mcp"], **options}
    async with proxy(ToolFilter(), to=upstream.origin, home=home, **given) as it:
        yield it


async def log_in(client: str, url: str, seconds: float = 0) -> dict[str, Any]:
    """Let a client log in, list and call; what it saw."""
    if client == "ts1":
        command = [
            str(NODE),
            "--import",
            str(SCRIPTS / "packages.mjs"),
            str(SCRIPTS / "login_ts1.mjs"),
        ]
    else:
        command = [str(INSTALLED / client / "bin" / "python"), str(SCRIPTS / "login_python.py")]
    process = await asyncio.create_subprocess_exec(
        *command,
        url,
        str(seconds),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    seen: dict[str, Any] = json.loads(out)
    return seen


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in(
    client: str, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    need(client)
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        with oauth_upstream(**PLACES[place]) as upstream:
            async with through(tmp_path, upstream) as running:
                ours = f"http://127.0.0.1:{running.port}"
                seen = await log_in(client, ours + "/mcp")
            assert seen["tools"] == ["read_file"]
            assert seen["called"] == "done"
            assert seen["visited"][0].startswith(ours)
            if upstream.sends_issuer:
                assert seen["iss"] == ours
                registered = upstream.registrations[0]["redirect_uris"]
                assert [urlsplit(uri).netloc for uri in registered] == [urlsplit(ours).netloc]
            for asked in (*upstream.authorizations, *upstream.token_requests):
                assert asked.get("resource", upstream.url) == upstream.url
            said = "\n".join(record.getMessage() for record in running.said) + caplog.text
            assert not [secret for secret in upstream.all_secrets() if secret in said]

    asyncio.run(main())


@pytest.mark.parametrize("place", ["other origin, sends iss", "same origin"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_token_that_expires_is_refreshed(client: str, place: str, tmp_path: Path) -> None:
    need(client)

    async def main() -> None:
        with oauth_upstream(lifetime=3, **PLACES[place]) as upstream:
            async with through(tmp_path, upstream) as running:
                seen = await log_in(client, f"http://localhost:{running.port}/mcp", 3.5)
            assert seen["called_later"] == "done"
            assert upstream.renewals > 0
            assert all(one.get("resource") == upstream.url for one in upstream.token_requests)

    asyncio.run(main())
