"""What is typed or written wrongly, and all that a person is told about it.

A row of ``mistakes/typed.txt`` is what is typed after its variables, then what stderr gets, and the
status unless it is 2. It is typed where the files of ``mistakes/home`` are; those of ``ran.txt``
run in a process of their own. A row of ``mistakes/written.txt`` is a config file, and what stderr
gets.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cli.launched import Typed
from tests.proxy import REPOSITORY

HERE = Path(__file__).parent / "mistakes"
ROWS = [
    (*row.strip().split("\n", 1), fixture)
    for fixture in ("typed", "ran")
    for row in re.sub("(?m)^#.*\n", "", (HERE / f"{fixture}.txt").read_text()).split("$ ")[1:]
]
WRITTEN = [row.split("\n=> ", 1) for row in (HERE / "written.txt").read_text().split("\n\n")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = shutil.copytree(HERE / "home", tmp_path / "home")
    (home / "utf-16.toml").write_bytes(b"\xff\xfe")
    (home / "binary").write_bytes(b"\0\xff\n\n")
    monkeypatch.chdir(home)
    with patch.dict(os.environ, {"HOME": str(home), "PATH": "/usr/bin:/bin"}, clear=True):
        yield home


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize(("line", "said", "fixture"), ROWS, ids=[line for line, _, _ in ROWS])
def test_a_mistake_is_told_and_changes_nothing(
    line: str, said: str, fixture: str, home: Path, request: pytest.FixtureRequest
) -> None:
    type_in: Typed = request.getfixturevalue(fixture)
    for name, place in {"{repository}": str(REPOSITORY), "{home}": str(home)}.items():
        line, said = line.replace(name, place), said.replace(name, place)
    said, _, status = said.partition("\nstatus ")
    before = contents(home)
    words = shlex.split(line)
    while re.match("[A-Z_]+=", words[0]):
        name, _, os.environ[name] = words.pop(0).partition("=")
    assert type_in(*words, status=int(status or 2)).err == f"{said}\n"
    assert contents(home) == before


@pytest.mark.parametrize(("text", "said"), WRITTEN, ids=[text for text, _ in WRITTEN])
def test_a_mistake_in_a_config_file_is_told(text: str, said: str, home: Path, typed: Typed) -> None:
    (file := home / "filter.toml").write_text(text)
    server = ("--server", "s") if "server" in text else ("-u", "localhost:1")
    told = typed(*server, "--config", file, status=None).err
    assert told == said.replace("{file}", str(file)).replace("\n=> ", "\n") + "\n"
