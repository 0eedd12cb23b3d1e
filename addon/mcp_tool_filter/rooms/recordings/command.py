"""``mcp-tool-filter replay`` and ``scrub``: work with recorded sessions.

``replay`` shows what a policy would have done to a session; ``scrub`` removes its secrets.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from mcp_tool_filter.cli.flags import WORDS, Given
from mcp_tool_filter.cli.options import CHOICE
from mcp_tool_filter.cli.settings import texts_of
from mcp_tool_filter.cli.terminal import count
from mcp_tool_filter.cli.whole_file import whole_file
from mcp_tool_filter.core.errors import StartError, printable
from mcp_tool_filter.core.policy.snapshot import shown

if TYPE_CHECKING:
    from mitmproxy.http import HTTPFlow

    from mcp_tool_filter.rooms.recordings.transcript import Reported, Transcript


_MOST_SHOWN = 20
REFUSED = 3
"""The exit status with ``--gate`` if a call would have been refused."""


class ReplayReport(TypedDict):
    """The output of ``--json``."""

    recording: str
    exposed: list[str]
    hidden: dict[str, str]
    """Each hidden tool, and the pattern that hides it."""
    saved_bytes: int
    requests: int
    passed: dict[str, int]
    """Forwarded calls, by tool."""
    refused: dict[str, int]
    hidden_things: list[str]
    """Denied prompts, resources and skills that lists do not show."""
    refused_things: dict[str, int]
    """Refused requests for such."""
    unknown: dict[str, int]
    """Calls that pass now but did not when they were recorded, so that the answer is unknown."""
    rules: dict[str, int]
    """Messages that rules refused or changed, by rule."""
    leaks: list[str]
    shadow: bool
    reported: list[Reported]
    """What rules with ``mode: audit``, or all with ``--shadow``, would have done."""


def run_replay(typed: Given) -> int:
    """Replay the recordings; return the exit status."""
    recordings = [Path(word) for word in typed[WORDS]]
    logging.disable(logging.WARNING)  # we report the refusals ourselves
    outcomes = [_replay(path, typed) for path in recordings]
    if "json" in typed:
        print(json.dumps(outcomes if len(outcomes) > 1 else outcomes[0], indent=2))
    elif "transcript" not in typed:
        print("\n\n".join("\n".join(map(printable, _lines(outcome))) for outcome in outcomes))
    failed = any(
        outcome["refused"] or outcome["leaks"] or _would_refuse(outcome) for outcome in outcomes
    )
    return REFUSED if "gate" in typed and failed else 0


def _replay(path: Path, typed: Given) -> ReplayReport:
    from mcp_tool_filter.rooms.recordings.flow_dump import damage_in, read_recording
    from mcp_tool_filter.rooms.recordings.replay import replay

    options = texts_of(typed, (*CHOICE, "lock", "rules", "shadow"))
    recording = read_recording(path)
    with damage_in(path):
        transcript = replay(recording, **options)
        shown = transcript.render() if "transcript" in typed else ""
        outcome = _outcome(path.name, transcript, is_shadow="shadow" in typed)
    print(shown, end="")
    return outcome


def _outcome(name: str, transcript: Transcript, *, is_shadow: bool) -> ReplayReport:
    from mcp_tool_filter.core.process.sentences import hider_of
    from mcp_tool_filter.rooms.recordings.transcript import find_leaks

    snapshot, calls = transcript.snapshot, transcript.calls
    judgements = [one for turn in transcript.turns for one in turn.judgements]
    things = [thing for judgement in judgements for thing in judgement.things]
    reported = [one for judgement in judgements for one in judgement.reported]
    return ReplayReport(
        recording=name,
        exposed=list(snapshot.allowed),
        hidden={tool: hider_of(tool, snapshot) for tool in snapshot.denied},
        saved_bytes=snapshot.denied_bytes,
        requests=len(transcript.turns),
        passed=Counter(call.tool for call in calls if call.passes and call.is_known),
        refused=Counter(call.tool for call in calls if not call.passes),
        hidden_things=list(dict.fromkeys(name for name, is_asked in things if not is_asked)),
        refused_things=Counter(name for name, is_asked in things if is_asked),
        unknown=Counter(call.tool for call in calls if call.passes and not call.is_known),
        rules=Counter(rule for judgement in judgements for rule in judgement.rules),
        leaks=[] if is_shadow else list(find_leaks(transcript)),
        shadow=is_shadow,
        reported=reported,
    )


def _lines(outcome: ReplayReport) -> Iterator[str]:
    hidden, exposed = outcome["hidden"], outcome["exposed"]
    yield f"{outcome['recording']}: {outcome['requests']} requests"
    would = "would be " if outcome["shadow"] else ""
    yield f"  Tools: {len(hidden) + len(exposed)}, of which {len(hidden)} {would}hidden"
    yield f"  {'Would save' if would else 'Saved'}: {outcome['saved_bytes']:,} bytes per tools/list"
    for tool, why in hidden.items():
        yield f"    {tool}: {why}"
    yield f"  Calls that pass: {_counted(outcome['passed'])}"
    yield f"  Calls refused: {_counted(outcome['refused'])}"
    if things := outcome["hidden_things"]:
        yield f"  Hidden besides tools: {', '.join(things)}"
    if refused := outcome["refused_things"]:
        yield f"  Other requests refused: {_counted(refused)}"
    if rules := outcome["rules"]:
        yield f"  Messages that rules refuse or change: {_counted(rules)}"
    if outcome["shadow"] or outcome["reported"]:
        yield from _reported_lines(outcome["reported"])
    if unknown := outcome["unknown"]:
        yield f"  Calls that pass now, but have no answer in the recording: {_counted(unknown)}"
    yield from (f"  Leak: {leak}" for leak in outcome["leaks"])


def _would_refuse(outcome: ReplayReport) -> bool:
    """Tell whether a call would be refused with these options, if they were enforced."""
    calls = (one for one in outcome["reported"] if one["tool"] and not one["of_answer"])
    return outcome["shadow"] and any(call["verdict"] in ("refused", "dropped") for call in calls)


def _reported_lines(reported: Sequence[Reported]) -> Iterator[str]:
    for one in reported:
        of = "answer to " if one["of_answer"] else ""
        tool = f" {shown(one['tool'])}" if one["tool"] else ""
        yield f"  {of}{shown(one['method'])}{tool}: {one['text']}"
    words = Counter(one["verdict"] for one in reported)
    yield f"  Only reported: {', '.join(f'{n} {word}' for word, n in words.items()) or 'nothing'}"


def _counted(calls: dict[str, int]) -> str:
    return ", ".join(f"{tool} {count}x" for tool, count in calls.items()) or "none"


def run_scrub(typed: Given) -> int:
    """Scrub a file into another; return the exit status."""
    from mcp_tool_filter.rooms.recordings.flow_dump import damage_in, http_flows, read_all_flows
    from mcp_tool_filter.rooms.recordings.scrub import Scrubber

    source, target = map(Path, typed[WORDS])
    scrubber = Scrubber(
        fields=frozenset(typed.get("field", ())),
        headers=frozenset(map(os.fsencode, typed.get("header", ()))),  # any bytes can be typed
    )
    everything = read_all_flows(source)
    flows = http_flows(everything)
    try:
        with damage_in(source):
            found = scrubber.scrub(flows)
            _write(target.resolve(), flows)
    except OSError as error:
        why = error.strerror or str(error)
        raise StartError(f"Cannot write {target}", why=why) from error
    counts = f"{count(len(flows), 'flow')}, {count(found, 'secret')}"
    print(f"{counts} masked: {target}", file=sys.stderr)
    if others := len(everything) - len(flows):
        are = "that is" if others == 1 else "that are"
        print(f"Left out: {count(others, 'flow')} {are} not HTTP", file=sys.stderr)
    _warn_of(scrubber.unread)
    return 0


def _write(target: Path, flows: Sequence[HTTPFlow]) -> None:
    """Write the file atomically; only its owner may read it."""
    from mcp_tool_filter.rooms.recordings.flow_dump import write_flows_to

    if target.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    with whole_file(target) as new:  # source and target may be the same file
        write_flows_to(new, flows)


def _warn_of(unread: Sequence[str]) -> None:
    if not unread:
        return
    print("Warning: these parts could not be read and may still hold secrets:", file=sys.stderr)
    for part in unread[:_MOST_SHOWN]:
        print(f"  {printable(part)}", file=sys.stderr)
    if len(unread) > _MOST_SHOWN:
        print(f"  and {len(unread) - _MOST_SHOWN} more", file=sys.stderr)
