"""``mcp-tool-filter replay`` and ``scrub``, as a person types them."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.rooms.recordings.flow_dump import KEY, read_flows, write_flows
from tests.cli.launched import Typed
from tests.proxy import REPOSITORY
from tests.rooms.rules.test_rules_over_stdio import ruled_by

RECORDINGS = REPOSITORY / "recordings"
SSE = RECORDINGS / "mcp1-sse.flow"


def test_a_replay_shows_what_a_policy_would_have_done(typed: Typed) -> None:
    done = typed("replay", SSE, "--deny", "^read_")
    assert done.err == ""
    assert done.out == (
        "mcp1-sse.flow: 12 requests\n"
        "  Tools: 17, of which 1 hidden\n"
        "  Saved: 482 bytes per tools/list\n"
        "    read_file: denied by ^read_\n"
        "  Calls that pass: echo 2x, progress 1x, sample 1x, fail 1x\n"
        "  Calls refused: read_file 1x\n"
        "  Calls that pass now, but have no answer in the recording: delete_file 1x\n"
    )


def test_a_replay_names_refused_prompts_resources_and_skills(typed: Typed) -> None:
    flags = ("--deny-prompts", "^no_such", "--deny-resources", "^FILE:/", "--ignore-case")
    done = typed("replay", RECORDINGS / "ts1-errors.flow", *flags)
    assert done.err == ""
    refused = "resource file:///nowhere 1x, prompt no_such_prompt 1x"
    assert f"  Other requests refused: {refused}\n" in done.out


def test_a_replay_can_use_a_lock(tmp_path: Path, typed: Typed) -> None:
    lock = tmp_path / "tools.lock"
    lock.write_text('{"version":1,"tools":{}}')
    done = typed("replay", RECORDINGS / "mcp1-paginated.flow", "--lock", lock)
    assert done.err == ""
    assert "    delete_file: not approved\n" in done.out
    assert "  Calls refused: delete_file 1x\n" in done.out


def test_a_replay_can_list_each_message_that_a_policy_would_refuse_or_change(
    tmp_path: Path, typed: Typed
) -> None:
    rule = "{id: tried, mode: audit, actions: [block: no], conditions: [tool_equals: echo]}"
    flags = ("--deny", "^read_", *ruled_by(tmp_path, rule), "--shadow")
    done = typed("replay", SSE, *flags)
    assert done.err == ""
    lines = done.out.splitlines()
    assert "  Tools: 17, of which 1 would be hidden" in lines
    assert "  Calls refused: none" in lines
    assert sorted(line for line in lines if ": would be " in line) == [
        "  answer to tools/list: would be changed: hidden 1 tool; ^read_: read_file",
        "  tools/call echo: would be refused: refused by rule tried: no",
        "  tools/call echo: would be refused: refused by rule tried: no",
        "  tools/call read_file: would be refused: not found: read_file (denied by ^read_)",
    ]
    assert "  Only reported: 1 changed, 3 refused" in lines
    done = typed("replay", SSE, *flags, "--json")
    reported = json.loads(done.out)["reported"]
    assert [one["tool"] for one in reported if one["verdict"] == "refused"].count("echo") == 2
    typed("replay", SSE, *flags, "--gate", status=3)


def test_another_file_is_not_replayed(typed: Typed) -> None:
    refused = typed("replay", RECORDINGS / "README.md", status=1).err
    assert "Not a mitmproxy flow file" in refused


def test_a_replay_can_print_json(typed: Typed) -> None:
    done = typed("replay", RECORDINGS / "ts1-batch.flow", "--allow", "^read_", "--json")
    outcome = json.loads(done.out)
    assert outcome["exposed"] == ["read_file"]
    assert outcome["hidden"]["delete_file"] == "matches no allow pattern"
    assert outcome["passed"] == {"read_file": 2}
    assert outcome["refused"] == {"delete_file": 2, "no_such_tool": 1}
    assert outcome["leaks"] == []


@pytest.mark.parametrize(("flags", "status"), [
    (["--deny", "^read_"], 3), (["--deny", "^write_"], 0),
    (["--deny", "^read_", "--except", "^read_file$"], 0),
])  # fmt: skip
def test_a_replay_can_fail_if_a_call_would_be_refused(
    flags: list[str], status: int, typed: Typed
) -> None:
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    typed("replay", recording, *flags, "--gate", status=status)


def test_a_transcript_shows_both_sides(typed: Typed) -> None:
    done = typed("replay", RECORDINGS / "ts1-errors.flow", "--deny", "^fail$", "--transcript")
    assert "upstream gets   nothing" in done.out
    assert '"message":"Tool not found: fail"' in done.out


def test_rules_are_tried_on_a_recording_and_send_nothing(tmp_path: Path, typed: Typed) -> None:
    rules = ruled_by(
        tmp_path,
        "{id: no-echo, conditions: [tool_equals: echo], actions: [delay: 1m, block: x]}",
        "{id: told, actions: [webhook: {url: 'http://127.0.0.1:1/'}, fork: {}]}",
    )
    recording = RECORDINGS / "mcp1-streamable-json.flow"
    said = json.loads(typed("replay", recording, *rules, "--json").out)
    assert said["rules"] == {"no-echo": 2}
    assert said["refused"] == {"echo": 2}
    assert said["unknown"] == {"delete_file": 1}


def test_the_rules_are_counted_for_each_message_of_a_batch(tmp_path: Path, typed: Typed) -> None:
    rule = "{id: no-calls, conditions: [method_equals: tools/call], actions: [block: x]}"
    rules, recording = ruled_by(tmp_path, rule), RECORDINGS / "ts1-batch.flow"
    said = json.loads(typed("replay", recording, *rules, "--json").out)
    assert said["refused"] == {"read_file": 2, "delete_file": 2, "no_such_tool": 1}
    assert said["rules"] == {"no-calls": 4}  # rules never see a call of a tool that is not there


def test_scrub_writes_a_clean_copy(tmp_path: Path, typed: Typed) -> None:
    """Only its user can read it, whoever could before."""
    (target := tmp_path / "clean.flow").touch(0o644)
    said = typed("scrub", SSE, target, "--field", "path").err
    assert target.stat().st_mode & 0o777 == 0o600
    assert said == f"12 flows, 1 secret masked: {target}\n"
    assert b'"path":"xxxxxxxxx"' in target.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["clean.flow"]


def test_scrub_can_overwrite_its_input(tmp_path: Path, typed: Typed) -> None:
    copy = tmp_path / "copy.flow"
    copy.write_bytes(SSE.read_bytes())
    typed("scrub", copy, copy)
    assert copy.read_bytes() == SSE.read_bytes()


@pytest.mark.parametrize("name", ["X-Schl\u00fcssel", "X-\udcff"])
def test_scrub_masks_a_header_with_any_name(name: str, tmp_path: Path, typed: Typed) -> None:
    """What is typed are bytes, as in a request; they need not be UTF-8."""
    [flow, *_] = read_flows(SSE)
    flow.request.headers.fields += ((os.fsencode(name), b"0pen-sesame"),)
    with (tmp_path / "own.flow").open("wb") as file:
        FlowWriter(file).add(flow)
    said = typed("scrub", tmp_path / "own.flow", tmp_path / "clean.flow", "--header", name).err
    assert said.startswith("1 flow, 1 secret masked")
    assert b"0pen-sesame" not in (tmp_path / "clean.flow").read_bytes()


def test_scrub_names_what_it_did_not_read(tmp_path: Path, typed: Typed) -> None:
    [flow, *_] = read_flows(SSE)
    flow.request.headers["content-encoding"] = "x-own"
    flow.request.raw_content = b"?"
    with (tmp_path / "mixed.flow").open("wb") as file:
        writer = FlowWriter(file)
        for one in (flow, tflow.ttcpflow()):
            writer.add(one)
    done = typed("scrub", tmp_path / "mixed.flow", tmp_path / "clean.flow")
    assert done.err == (
        f"1 flow, 0 secrets masked: {tmp_path}/clean.flow\n"
        "Left out: 1 flow that is not HTTP\n"
        "Warning: these parts could not be read and may still hold secrets:\n"
        "  flow 1 (POST), request: a content coding that is not accepted\n"
    )


def test_a_damaged_recording_gives_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be full, or a byte wrong; mitmproxy does not check what it reads."""
    monkeypatch.setattr(logging, "disable", lambda _level: None)
    whole = SSE.read_bytes()
    chosen = random.Random(1)
    damaged, target = tmp_path / "damaged.flow", tmp_path / "clean.flow"
    refused = 0
    for number in range(60):
        at = chosen.randrange(len(whole))
        piece = bytes(chosen.choices(b"0123456789:,;]}!~#^", k=number % 3))
        damaged.write_bytes(whole[:at] + piece + (whole[at + 1 :] if number % 4 else b""))
        target.unlink(missing_ok=True)
        for argv in (["scrub", str(damaged), str(target)], ["replay", str(damaged)]):
            status = main(argv)
            out, err = capsys.readouterr()
            refused += status != 0
            assert status in (0, 1, 2), (number, at)
            assert "Traceback" not in out + err
            assert (status == 0) or err.startswith("Error: "), err
            assert argv[0] == "replay" or target.exists() == (status == 0)
    assert refused


ODD = [None, -1, float("nan"), "x", b"x", [], {}, [1], {"a": 1}, True, 10**30, [["a", "b"]]]


def _set(holder: Any, path: list[str | int], value: object) -> None:
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value


@pytest.mark.parametrize("path", [
    [KEY], *[[KEY, one] for one in ("asked", "said", "fetched")],
    *[[KEY, "asked", *one] for one in (["host"], ["body"], ["headers"], ["headers", 0, 1])],
    *[[KEY, "said", one] for one in ("status", "at", "ended", "chunks", "headers", "left_out")],
    *[[KEY, "fetched", one] for one in ("pages", "server", "transport", "revision", "endpoint")],
], ids=str)  # fmt: skip
def test_odd_metadata_gives_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: list[str | int]
) -> None:
    """Anybody can write a dump; metadata are not checked by mitmproxy at all."""
    odd = tmp_path / "odd.flow"
    for value in ODD:
        flows = read_flows(SSE)
        kept = next(one.metadata for one in flows if has(one.metadata, path[:2]))
        _set(kept, path, value)
        write_flows(odd, flows)
        status = main(["replay", str(odd), "--transcript"])
        out, err = capsys.readouterr()
        assert status == 0 or err.startswith("Error: "), (value, err)
        assert "Traceback" not in out + err


def has(metadata: dict[str, Any], path: list[str | int]) -> bool:
    kept = metadata.get(KEY) or {}
    return bool(kept.get(path[1]) if len(path) > 1 else kept)
