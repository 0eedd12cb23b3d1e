"""A named pipe, a folder or a device in the place of a file: one sentence, and nothing hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.cli.launched import Typed
from tests.rows import each_row

TO_NOBODY = ("--upstream", "http://127.0.0.1:1")
KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


WAYS = [
    ("--config", "FILE", *TO_NOBODY),
    ("serve", "--config", "FILE"),
    ("--rules", "FILE", "--", "cat"),
    ("--edits", "FILE", *TO_NOBODY),
    ("--lock", "FILE", *TO_NOBODY),
    ("--audit-log", "FILE", *TO_NOBODY),
    ("audit", "FILE"),
    ("--ca", "FILE", "--upstream", "https://127.0.0.1:1"),
    ("--client-cert", "FILE", "--upstream", "https://127.0.0.1:1"),
    ("--cert", "FILE", *TO_NOBODY),
]


@each_row(("kind", "words"), [("pipe", one) for one in WAYS] + [
    ("folder", WAYS[0]), ("device", WAYS[0]),
])  # fmt: skip
def test_what_is_no_file_is_refused_in_a_sentence(
    kind: str, words: tuple[str, ...], ran: Typed, tmp_path: Path
) -> None:
    file = tmp_path / kind
    if not os.path.lexists(file):
        KINDS[kind](file)
    said = ran(*[str(file) if one == "FILE" else one for one in words], status=None)
    assert str(file) in said.err
    assert len(said.err.splitlines()) <= 3
