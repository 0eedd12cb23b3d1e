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


try:
    arguments = json.load(sys.stdin, object_pairs_hook=unique)["params"]["arguments"]
    known = set(arguments) <= {"to", "subject", "body"}
    fine = known and re.fullmatch(r"[a-z0-9._-]+@example\.com", arguments["to"])
except (KeyError, TypeError, ValueError):
    fine = False
if not fine:
    sys.stdout.write("Mail may only go to colleagues\n")
    sys.exit(1)
