"""What an audit log suggests, and what it does not claim."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mcp_tool_filter.cli.commands.schema import first_line
from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.rooms.audit.summary import look_through, policy_lines, unusual_calls


def call(tool: str, minute: int = 0, size: int = 100, session: str = "s") -> dict[str, object]:
    time = f"2026-11-18T{minute // 60:02d}:{minute % 60:02d}:00.000Z"
    return {
        "v": 1, "time": time, "method": "tools/call", "tool": tool, "verdict": "forwarded",
        "session": session, "arguments": {"hash": "h", "bytes": size},
    }  # fmt: skip


def test_a_call_with_far_larger_arguments_is_unusual() -> None:
    seen = look_through([*(call("q", n, 100 + n % 7) for n in range(30)), call("q", 40, 9000)])
    assert [one.why for one in unusual_calls(seen)] == ["arguments of 9,000 bytes; usual: 103"]


def test_a_burst_is_unusual() -> None:
    seen = look_through([*(call("q", n) for n in range(30)), *(call("q", 45) for _ in range(60))])
    assert [one.why for one in unusual_calls(seen)] == ["60 calls in one minute; usual: 1"]


def test_a_tool_that_only_one_session_calls_late_is_unusual() -> None:
    others = [call("q", n, session="a") for n in range(30)]
    own = [call("q", n, session="b") for n in range(30)] + [call("exec", 31, session="b")]
    assert [one.tool for one in unusual_calls(look_through([*others, *own]))] == ["exec"]


def test_few_calls_give_no_findings() -> None:
    assert not unusual_calls(look_through([call("q", n, 10**n) for n in range(6)]))


def test_the_suggested_policy_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, policy = tmp_path / "audit.jsonl", tmp_path / "policy.yaml"
    entries = [call("read"), call("it's: odd")]
    log.write_text("".join(json.dumps(one) + "\n" for one in entries))
    assert main(["audit", "suggest", str(log), "--policy"]) == 0
    policy.write_text(capsys.readouterr().out)
    assert policy.read_text() == "\n".join(policy_lines(look_through(entries))) + "\n"
    assert policy.read_text().startswith(first_line("rules"))
    assert main(["rules", "check", str(policy)]) == 0
    assert main(["audit", "suggest", str(log)]) == 0
    assert "Fewer than 20 calls" in capsys.readouterr().out
    assert main(["audit", "suggest", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 2


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\u202eevil", "\ud800", "a'b\tc", "é💥"])
def test_any_name_can_stand_in_the_suggested_policy(name: str, tmp_path: Path) -> None:
    """Clients choose the names of tools that they call, and a terminal shows the suggestion."""
    text = "\n".join(policy_lines(look_through([call(name)])))
    assert all(one.isprintable() for one in text.splitlines())
    policy = tmp_path / "policy.yaml"
    policy.write_text(text, encoding="utf-8")
    if name != "\ud800":  # no YAML can say it; the rules file is refused
        assert main(["rules", "check", str(policy)]) == 0


def test_a_doubtful_tool_is_marked_in_the_suggested_policy() -> None:
    entries = [*(call("q", n, 100 + n % 7) for n in range(30)), call("q", 40, 9000)]
    (line,) = [one for one in policy_lines(look_through(entries)) if "- 'q'" in one]
    assert line.endswith("# unusual: arguments of 9,000 bytes; usual: 103")


def test_sizes_that_vary_by_factors_are_usual() -> None:
    """Texts do: their sizes follow no bell curve."""
    chance = random.Random(7)
    sizes = [round(chance.lognormvariate(4.5, 0.6)) for _ in range(2000)]
    entries = [call("q", n % 1440, size) for n, size in enumerate(sizes)]
    assert len(unusual_calls(look_through(entries))) <= 2
    found = unusual_calls(look_through([*entries, call("q", 3, 200_000)]))
    assert any("200,000 bytes" in one.why for one in found)


def test_calls_that_come_by_chance_are_no_burst() -> None:
    chance = random.Random(7)
    entries = [call("q", int(chance.random() * 1000)) for _ in range(2500)]
    assert not unusual_calls(look_through(entries))


def test_the_most_unusual_are_shown_if_there_are_many() -> None:
    usual = [call("q", n % 60) for n in range(500)]
    odd = [call("q", 61, 10_000) for _ in range(80)]
    found = unusual_calls(look_through([*usual, *odd, call("q", 1400, 10_000_000)]))
    assert len(found) == 50
    assert "10,000,000 bytes" in found[-1].why


def test_clients_without_a_session_are_told_apart_by_their_address() -> None:
    """A stateless client may use a port for each call."""
    entries = [call("q", n, session="") | {"client": f"10.0.0.{n % 2}:{n}"} for n in range(100)]
    assert len(look_through(entries).sessions) == 2


def test_the_suggested_rate_allows_all_that_was_seen_in_a_minute() -> None:
    entries = [call(tool, 5) for tool in ("a", "b", "c") for _ in range(10)]
    assert any("per_minute: 60" in line for line in policy_lines(look_through(entries)))
