"""A fixed parameter that is mapped to a header: we set it, and a client's own never passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.rooms.merged.newer_upstream import META, REVISION, newer_upstream
from tests.rooms.merged.talking import Talking, asked
from tests.rooms.serve.test_serve import serving
from tests.session_upstream import session_upstream


def called(client: Talking, tool: str, arguments: Any, **headers: str) -> Any:
    meta = {f"{META}protocolVersion": REVISION, f"{META}clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    usual = {
        "mcp_protocol_version": REVISION, "mcp_method": "tools/call", "mcp_name": tool, **headers,
    }  # fmt: skip
    return client.send("POST", asked("tools/call", json.dumps(params)), **usual)


def test_a_fixed_value_is_set_in_the_head_too(tmp_path: Path) -> None:
    with newer_upstream("new") as remote:
        text = (
            f'[servers.new]\nurl = "{remote.url}"\n[servers.new.tools.echo]\nfix = {{a = "ours"}}\n'
            '[servers.new.tools.header]\nname = "other"\nfix = {a = "ours"}\n'
        )
        with serving(tmp_path, text) as it:
            it.says("new: http")
            for path, prefix in (("/new/mcp", ""), ("/mcp", "new_")):
                client = Talking(it.port, path)
                for tool, own in (("echo", "echo"), ("other", "header")):
                    for header in ({}, {"mcp_param_a": "mine"}, {"Mcp_Param_A": "=?base64?bQ==?="}):
                        answer = called(client, prefix + tool, {}, **header)
                        assert (answer.status, "result" in answer.json()) == (200, True), answer
                        headers, message = remote.journal[-1]
                        assert headers["mcp-param-a"] == "ours"
                        assert headers["mcp-name"] == message["params"]["name"] == own
                        assert message["params"]["arguments"] == {"a": "ours"}
                refused = called(client, prefix + "echo", {"a": "mine"}, mcp_param_a="mine")
                assert refused.json()["error"]["code"] == -32602


def test_a_client_of_a_session_cannot_send_the_header(tmp_path: Path) -> None:
    with session_upstream() as remote:
        text = (
            f'[servers.far]\nurl = "{remote.url}"\n[servers.far.tools.mirrored]\n'
            'fix = {region = "ours"}\n'
        )
        with serving(tmp_path, text) as it:
            it.says("far: http")
            for path, tool in (("/far/mcp", "mirrored"), ("/mcp", "far_mirrored")):
                client = Talking(it.port, path).opens()
                body = asked("tools/call", json.dumps({"name": tool, "arguments": {}}), "5")
                answer = client.send("POST", body, mcp_param_region="mine", mcp_param_other="x")
                assert answer.status == 200
                [call] = remote.calls()
                assert call.message["params"]["arguments"] == {"region": "ours"}
                assert "mcp-param-region" not in call.headers
                remote.forget()
