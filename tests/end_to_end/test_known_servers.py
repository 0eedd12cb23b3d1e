"""Well-known servers do the same with the filter as without it, except for one tool."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .peer import NODE, PYTHON_SERVERS, SERVERS, Document, Step, need, play
from .test_everyones_list import CLIENTS
from .test_stdio_peers import serving

FILTER = [sys.executable, "-m", "mcp_tool_filter"]


def call(name: str, **arguments: Any) -> Step:
    return {"call": name, "arguments": arguments}


@dataclass(frozen=True)
class Known:
    denied: str
    steps: tuple[Step, ...]
    command: tuple[str, ...]
    peer: str = "servers"


def in_node(name: str, *words: str) -> tuple[str, ...]:
    return str(NODE), str(SERVERS / f"server-{name}" / "dist" / "index.js"), *words


ADA = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
KNOWN = {
    "everything": Known(
        "get-env",
        (
            call("echo", message="hello"), call("get-sum", a=2, b=3), call("get-tiny-image"),
            call("trigger-long-running-operation", duration=1, steps=2) | {"progress": True},
            {"list": "resources"}, {"list": "prompts"},
        ),
        in_node("everything"),
    ),
    "filesystem": Known(
        "write_file",
        (call("list_directory", path="."), call("read_text_file", path="FOLDER/one.txt")),
        in_node("filesystem", "FOLDER"),
    ),
    "memory": Known(
        "delete_entities",
        (call("create_entities", entities=[ADA]), call("search_nodes", query="Ada")),
        in_node("memory"),
    ),
    "time": Known(
        "convert_time",
        (call("get_current_time", timezone="UTC"), call("get_current_time", timezone="nowhere")),
        (str(PYTHON_SERVERS / "mcp-server-time"),), "servers-py",
    ),
    "git": Known(
        "git_commit", (call("git_status", repo_path="FOLDER"),),
        (str(PYTHON_SERVERS / "mcp-server-git"),), "servers-py",
    ),
}  # fmt: skip
ADDED_LATER = (
    "get-roots-list", "trigger-sampling-request", "trigger-sampling-request-async",
    "trigger-elicitation-request", "trigger-elicitation-request-async", "trigger-url-elicitation",
)  # fmt: skip
WAYS = [(name, flags, False) for name, flags in CLIENTS] + [("mcp1", (), True)]


@pytest.mark.parametrize("server", KNOWN)
@pytest.mark.parametrize(
    ("client", "flags", "over_http"),
    WAYS,
    ids=[f"{name}{' over HTTP' * over_http}" for name, _, over_http in WAYS],
)
def test_a_server_works_behind_the_filter(
    server: str, client: str, flags: tuple[str, ...], over_http: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    known = KNOWN[server]
    need(client, "node", known.peer)
    monkeypatch.setenv("MEMORY_FILE_PATH", str(tmp_path / "memory.json"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "one.txt").write_text("one")
    command = [word.replace("FOLDER", str(tmp_path)) for word in known.command]
    words = [*FILTER, "--deny", f"^{known.denied}$", "--", *command]
    steps = json.dumps([{"list": "tools"}, *known.steps, call(known.denied)])
    scenario = json.loads(steps.replace("FOLDER", str(tmp_path)))

    direct = play(client, json.dumps(command), scenario, "--transport", "stdio", *flags)
    (tmp_path / "memory.json").unlink(missing_ok=True)
    if over_http:
        with serving(command, deny=f"^{known.denied}$") as origin:
            filtered = play(client, f"{origin}/mcp", scenario)
    else:
        filtered = play(client, json.dumps(words), scenario, "--transport", "stdio", *flags)
    compare(known, direct, filtered)


def compare(known: Known, direct: Document, filtered: Document) -> None:
    assert (filtered.error, filtered.parting) == (None, None)
    assert filtered.server == direct.server
    assert filtered.protocol == direct.protocol
    before, after = (tools_in(document) for document in (direct, filtered))
    assert known.denied in [tool["name"] for tool in before]
    assert after == [tool for tool in before if tool["name"] != known.denied]
    for one, other in zip(direct.outcomes[1:-1], filtered.outcomes[1:-1], strict=True):
        assert without_time(one) == without_time(other)
    assert filtered.outcomes[-1]["error"]["code"] == -32601


def tools_in(document: Document) -> list[dict[str, Any]]:
    """Leave out what server-everything adds some time after its client has shown what it can."""
    tools = document.outcomes[0]["result"]["tools"]
    return [tool for tool in tools if tool["name"] not in ADDED_LATER]


def without_time(outcome: dict[str, Any]) -> Any:
    """Leave out what differs from one call to the next.

    The TypeScript client drops progress that comes in one piece with the result, and the server
    sends the last of it together with its result.
    """
    text = json.dumps(outcome)
    if "progress" in outcome:
        outcome = outcome | {"progress": [one for one in outcome["progress"] if one[0] < one[1]]}
    return "datetime" in text or outcome
