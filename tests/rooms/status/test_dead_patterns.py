"""A pattern that several servers have is dead only if it matches at none of them: in each view.

``test_status`` has status itself, and the doctor of one server.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.launched import Typed
from tests.rooms.serve.test_serve import serving
from tests.stdio_client import upstream

ONE, TWO = upstream("--tools", "read_file,delete_file"), upstream("--tools", "notes")
LOST = 'Warning: the pattern "^gone" matches no tool of those that answered\n'
DEAD = 'Warning: the pattern "^gone" matches no tool of any server\n'


def table(name: str, command: list[str]) -> str:
    return f"[servers.{name}]\ncommand = {json.dumps(command)}\n"


def test_serve_and_doctor_judge_a_shared_pattern_by_all_servers(home: Path, ran: Typed) -> None:
    text = 'deny = ["^delete_", "^gone"]\n' + table("one", ONE) + table("two", TWO)
    for more, said in (("", DEAD), (table("lost", ["/none/such"]), LOST)):
        with serving(home, text + more) as served:
            served.says(re.escape(said))
            assert "two: the pattern" not in served.stderr
            found = ran("doctor", "--config", served.file, status=1).out
            is_sure = said is DEAD
            words = ("doctor", "--config", served.file, "--server", "two")
            one = ran(*words, status=int(is_sure)).out
        assert ('FAIL The pattern "^gone" matches no tool of any server' in found) == is_sure
        assert ('ok   Warning: the pattern "^gone" matches no tool of those' in found) != is_sure
        assert found.count("^gone") == 1
        assert 'The pattern "^delete_" is for all servers, and matches at others' in one
        assert ("FAIL" in one) == is_sure


def test_wrapping_all_servers_says_once_what_matches_nowhere(home: Path, typed: Typed) -> None:
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    servers = {
        name: {"command": command[0], "args": command[1:]}
        for name, command in (("one", ONE), ("two", TWO), ("lost", ["/none/such"]))
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    words = ("wrap", "cursor", "--all", "--deny", "^delete_,^gone", "--yes")
    err = typed(*words).err
    assert (err.count("^gone"), LOST in err, "^delete_" in err) == (1, True, False)
    said = typed("status", status=1)
    assert (said.err.count("^gone"), LOST in said.err, "^delete_" in said.err) == (1, True, False)
    rows = {row["name"]: row for row in json.loads(typed("status", "--json", status=1).out)}
    dead = {name: row["dead_patterns"] for name, row in rows.items()}
    assert dead == {"one": ["^gone"], "two": ["^gone"], "lost": []}
