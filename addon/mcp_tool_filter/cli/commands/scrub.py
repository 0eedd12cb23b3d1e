"""``mcp-tool-filter scrub``: a recording without its secrets."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of mitmproxy's own dependencies
    from mcp_tool_filter.adapters.recordings.flow_dump import read_flows, write_flows
    from mcp_tool_filter.adapters.recordings.scrub import DEFAULT_FIELDS, Scrubber

from mcp_tool_filter.errors import StartError


class CannotWrite(StartError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"Cannot write {path}", why=why)


def run(argv: Sequence[str]) -> int:
    """Read one file, write the other; return the exit status."""
    args = _parser().parse_args(argv)
    scrubber = Scrubber(
        fields=DEFAULT_FIELDS | frozenset(args.field),
        headers=frozenset(name.lower().encode() for name in args.header),
    )
    flows = read_flows(args.source)
    found = scrubber.scrub(flows)
    partial = args.target.with_name(args.target.name + ".part")
    try:
        write_flows(partial, flows)
        os.replace(partial, args.target)  # so that both may be the same file
    except OSError as error:
        raise CannotWrite(args.target, error.strerror or str(error)) from error
    print(f"{len(flows)} flows, {found} secrets masked: {args.target}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-tool-filter scrub",
        description="Take secrets out of a recording: authorization and other credentials, "
        "cookies, session ids, and the JSON fields "
        f"{', '.join(sorted(DEFAULT_FIELDS))}. What else is secret you have to name.",
    )
    parser.add_argument("source", type=Path, help="a flow dump, as mitmdump -w writes it")
    parser.add_argument("target", type=Path, help="where the clean one goes")
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME", help="a further JSON field"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME", help="a further header"
    )
    return parser
