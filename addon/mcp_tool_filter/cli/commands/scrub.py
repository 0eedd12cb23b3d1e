"""``mcp-tool-filter scrub``: a recording without its secrets."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of mitmproxy's own dependencies
    from mitmproxy.http import HTTPFlow

    from mcp_tool_filter.adapters.recordings.flow_dump import read_all_flows, write_flows_to
    from mcp_tool_filter.adapters.recordings.scrub import Scrubber

from mcp_tool_filter.errors import StartError

_MOST_SHOWN = 20


class CannotWrite(StartError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"Cannot write {path}", why=why)


def run(argv: Sequence[str]) -> int:
    """Read one file, write the other; return the exit status."""
    args = _parser().parse_args(argv)
    scrubber = Scrubber(
        fields=frozenset(args.field), headers=frozenset(map(str.encode, args.header))
    )
    everything = read_all_flows(args.source)
    flows = [flow for flow in everything if isinstance(flow, HTTPFlow)]
    found = scrubber.scrub(flows)
    try:
        _write(args.target.resolve(), flows)
    except OSError as error:
        raise CannotWrite(args.target, error.strerror or str(error)) from error
    counts = f"{_count(len(flows), 'flow')}, {_count(found, 'secret')}"
    print(f"{counts} masked: {args.target}", file=sys.stderr)
    if others := len(everything) - len(flows):
        are = "that is" if others == 1 else "that are"
        print(f"Left out: {_count(others, 'flow')} {are} not HTTP", file=sys.stderr)
    _warn_of(scrubber.unread)
    return 0


def _write(target: Path, flows: Sequence[HTTPFlow]) -> None:
    """Write the whole file or nothing; only its owner may read it."""
    if target.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as partial:
        try:
            write_flows_to(partial.file, flows)
            partial.flush()
            os.fsync(partial.fileno())
            os.replace(partial.name, target)  # so that both may be the same file
        except BaseException:
            with suppress(OSError):
                os.unlink(partial.name)
            raise


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _warn_of(unread: Sequence[str]) -> None:
    if not unread:
        return
    print("Warning: these parts could not be read and may still hold secrets:", file=sys.stderr)
    for part in unread[:_MOST_SHOWN]:
        print(f"  {part}", file=sys.stderr)
    if len(unread) > _MOST_SHOWN:
        print(f"  and {len(unread) - _MOST_SHOWN} more", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-tool-filter scrub",
        description="Take the secrets out of a recording: credentials in headers, cookies, "
        "session ids, values with names such as api_key, password or accessToken in JSON, forms "
        "and URLs, and tokens that are known by their shape (Bearer, JWT, ghp_, sk-, private "
        "keys). Name whatever else is secret.",
    )
    parser.add_argument("source", type=Path, help="a flow dump, as mitmdump -w writes it")
    parser.add_argument("target", type=Path, help="where to write the clean one (mode 0600)")
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME",
        help="a further secret JSON member, form field or URL parameter",
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME", help="a further secret header"
    )
    return parser
