"""``serve --stdio``: all servers as one entry of a client, without a port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rooms.merged.talking import CAPABILITIES, asked, rich
from tests.stdio_client import StdioClient, filtered

INITIALIZE = asked(
    "initialize",
    f'{{"protocolVersion":"2025-06-18","capabilities":{CAPABILITIES},'
    '"clientInfo":{"name":"t","version":"1"}}',
    "0",
)


@contextmanager
def over_stdio(folder: Path, text: str, *flags: str) -> Iterator[StdioClient]:
    file = folder / "servers.toml"
    file.write_text(text)
    with filtered("serve", "--stdio", "--config", str(file), *flags, home=folder) as client:
        yield client


def answer(client: StdioClient, id: object) -> Any:
    """Return the answer to a request; answer what servers ask meanwhile."""
    while True:
        message = json.loads(client.hears_line())
        if message.get("id") == id and "method" not in message:
            return message
        if "id" in message:
            result = {"action": "accept", "content": {}}
            client.say(
                json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            )


def test_all_servers_are_one_over_stdio(tmp_path: Path) -> None:
    text = f"[servers.one]\n{rich('one')}[servers.two]\n{rich('two')}"
    with over_stdio(tmp_path, text) as client:
        client.say(INITIALIZE)
        said = answer(client, 0)["result"]
        assert said["protocolVersion"] == "2025-06-18"
        client.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        client.say(asked("tools/list", id='"l"'))
        names = [one["name"] for one in answer(client, "l")["result"]["tools"]]
        assert {"one_echo", "two_echo"} <= set(names)
        client.say(asked("tools/call", '{"name":"two_elicit","arguments":{}}', "7"))
        assert "accept" in answer(client, 7)["result"]["content"][0]["text"]
        client.say(asked("tools/call", '{"name":"nobody"}', "8"))
        assert answer(client, 8)["error"]["message"] == "Tool not found: nobody"
        client.ends_input()
        assert client.process.wait(20) == 0


def test_a_profile_over_stdio(tmp_path: Path) -> None:
    text = (
        f"[servers.one]\n{rich('one')}[servers.two]\n{rich('two')}"
        '[profiles.few]\nservers = ["two"]\nallow = ["^echo$"]\n'
    )
    with over_stdio(tmp_path, text, "--profile", "few") as client:
        client.say(INITIALIZE)
        answer(client, 0)
        client.say(asked("tools/list", id="1"))
        tools = answer(client, 1)["result"]["tools"]
    assert [one["name"] for one in tools] == ["two_echo"]


def test_wrong_flags_are_refused(tmp_path: Path) -> None:
    text = f"[servers.one]\n{rich('one')}[profiles.few]\n"
    for flags, said in (
        (("--profile", "fex"), "did you mean few?"),
        (("--port", "0"), "listens on no port"),
    ):
        with over_stdio(tmp_path, text, *flags) as client:
            assert client.process.wait(20) == 2
            client.ends()
            assert said in client.stderr()
