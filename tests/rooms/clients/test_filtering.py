"""Is an entry filtered, and by what: clients, run, doctor and status give one answer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.launched import Typed
from tests.stdio_client import upstream

TOOLS = upstream("--tools", "read_file,delete_file")


def ours(*words: str) -> dict[str, object]:
    return {"command": "mcp-tool-filter", "args": list(words)}


def test_all_who_ask_get_one_answer(home: Path, typed: Typed, ran: Typed) -> None:
    command = json.dumps(TOOLS)
    default = home / ".config" / "mcp-tool-filter" / "config.toml"
    default.parent.mkdir(parents=True)
    default.write_text(
        f'[servers.files]\ncommand = {command}\ndeny = ["^delete_"]\n'
        f'[servers.seen]\ncommand = {command}\ndeny = ["^x"]\nshadow = true\n'
        '[servers.unset]\nurl = "http://127.0.0.1:1/mcp"\nheader = ["A: $NOT_SET"]\nshadow = true\n'
    )
    team = home / "team.toml"
    team.write_text(f'deny = ["^delete_"]\n[servers.a]\ncommand = {command}\nallow = ["a"]\n')
    watched = home / "watched.toml"
    watched.write_text(f"shadow = true\n{team.read_text()}")
    one = ours("serve", "--stdio", "--config", str(team))
    servers: dict[str, tuple[dict[str, object], str, list[str]]] = {
        "plain": ({"command": TOOLS[0], "args": TOOLS[1:]}, "no", []),
        "wrapped": (ours("--read-only", "--", *TOOLS), "yes", ["--read-only"]),
        "typed": (ours("--deny", "a", "--shadow", "--", *TOOLS), "only watched",
                  ["--deny", "a", "--shadow"]),
        "files": (ours("--server", "files"), "yes", ["--server", "files", "--deny", "^delete_"]),
        "more": (ours("--server", "files", "--deny", "b"), "yes",
                 ["--server", "files", "--deny", "b", "--deny", "^delete_"]),
        "seen": (ours("--server", "seen"), "only watched",
                 ["--server", "seen", "--deny", "^x", "--shadow"]),
        "unset": (ours("--server", "unset"), "only watched", ["--server", "unset", "--shadow"]),
        "all": (one, "yes", ["serve", "--stdio", "--config", str(team), "--deny", "^delete_",
                             "--allow", "a"]),
        "all watched": (ours("serve", "--stdio", "--config", str(watched)), "only watched",
                        ["serve", "--stdio", "--config", str(watched), "--deny", "^delete_",
                         "--allow", "a", "--shadow"]),
        "gone": (ours("--server", "gone"), "yes", ["--server", "gone"]),
    }  # fmt: skip
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    entries = {name: entry for name, (entry, _, _) in servers.items()}
    file.write_text(json.dumps({"mcpServers": entries}))
    answers = {name: (answer, by) for name, (_, answer, by) in servers.items()}

    listed = json.loads(typed("clients", "--json").out)
    assert {each["server"]: (each["answer"], each["by"]) for each in listed} == answers
    table = typed("clients").out
    assert "\tseen\tonly watched\t" in table
    assert "\tfiles\tyes\tmcp-tool-filter --server files\t--server files --deny '^delete_'" in table
    rows = json.loads(typed("status", "--json", "--timeout", "3000", status=1).out)
    said = {each["name"]: (each["filtered"], each["by"]) for each in rows if each["clients"]}
    assert said == {name: one for name, one in answers.items() if name in said}
    assert said.keys() >= answers.keys() - {"plain"}
    checked = ran("doctor", "--client", "cursor", status=1).out
    ran_with = ran("run", "--client", "cursor", "--", "true").err
    assert "nothing is filtered" not in ran_with
    assert "the servers of this client are not known" not in ran_with
    for name, (answer, _) in answers.items():
        assert (f"ok   {name} is filtered: " in checked) == (answer == "yes")
        assert (f"ok   {name} is only watched: " in checked) == (answer == "only watched")
        assert (f"FAIL {name} is a command" in checked) == (answer == "no")
        assert (f"Warning: {name} is not filtered" in ran_with) == (answer == "no")
        assert (f"Warning: {name} is only watched" in ran_with) == (answer == "only watched")
