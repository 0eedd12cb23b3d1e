#!/usr/bin/env python3
"""Lets mail go to one colleague at a time. The message comes on standard input.

What this script does not know is blocked: a second "to", cc, bcc, a list of addresses.
"""

import json
import re
import sys


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def is_for_a_colleague() -> bool:
    try:
        arguments = json.load(sys.stdin, object_pairs_hook=unique)["params"]["arguments"]
        is_known = set(arguments) <= {"to", "subject", "body"}
        return is_known and bool(re.fullmatch(r"[a-z0-9._-]+@example\.com", arguments["to"]))
    except (KeyError, TypeError, ValueError):
        return False


if __name__ == "__main__" and not is_for_a_colleague():
    sys.stdout.write("Mail may only go to colleagues\n")
    sys.exit(1)
