"""Every file, folder and module that the docs, comments and docstrings name exists."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from mcp_tool_filter.cli.options import OPTIONS
from mcp_tool_filter.cli.table import TOPICS
from mcp_tool_filter.rooms.rules.interceptors import to_plain
from mcp_tool_filter.rooms.rules.source import read_source
from tests import house
from tests.proxy import REPOSITORY
from tests.rows import each_row
from tests.shown import Block, blocks, blocks_of, pages

PACKAGE = REPOSITORY / "addon" / "mcp_tool_filter"
DOCS = PACKAGE / "docs"
# Where a reference may begin: the top, the package, and for short ones the core and its rooms.
ROOTS = [REPOSITORY, REPOSITORY / "addon", PACKAGE, PACKAGE / "core", PACKAGE / "rooms"]

_CODE = re.compile(r"`([\w./-]+)`")
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)|<img[^>]+src=\"([^\"]+)\"")
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r"python\d?(?:\.\d+)? -m (tests[\w.]*)")
_FILE = re.compile(
    r"(?<![\w./*-])((?:\.?[\w-]+/)+[\w.-]*\.(?:py|md|toml|flow|jsonl?|mjs|txt|png|css))\b"
)
_MADE = ("mcp_tool_filter/tool_filter.py",)  # by building the wheel


@cache
def tracked() -> frozenset[str]:
    """Return the files that git knows or would add."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return frozenset(subprocess.check_output(words, text=True, cwd=REPOSITORY).splitlines())


def files(*ends: str) -> list[str]:
    return sorted(one for one in tracked() if one.endswith(ends) and one != "tests/test_docs.py")


@cache
def first_parts() -> frozenset[str]:
    """Return the folders at which a reference to us can begin."""
    every = {child.name for root in ROOTS for child in root.iterdir() if child.is_dir()}
    return frozenset(every - {"files", "__pycache__"})


def exists(name: str, beside: Path) -> bool:
    if "/" not in name:
        return any(Path(one).name == name for one in tracked()) or (beside / name).exists()
    return any((root / name).exists() for root in [beside, *ROOTS])


def is_ours(name: str) -> bool:
    """Tell our own files from examples: ``core/policy/chain.py`` and not ``session.flow``."""
    if name in _MADE or name.endswith("/session.flow"):
        return False
    first, slash, _ = name.partition("/")
    if slash:
        return first in first_parts()
    return name.endswith((".py", ".toml")) and "." in name[1:]


def references_in(document: str) -> Iterator[str]:
    text = (REPOSITORY / document).read_text("utf-8")
    for block in _BLOCK.findall(text):
        yield from (name for name in _FILE.findall(block) if is_ours(name))
    prose = _BLOCK.sub("", text)
    yield from (name for name in _CODE.findall(prose) if is_ours(name))
    links = [link or image for link, image in _LINK.findall(prose)]
    yield from (link for link in links if "://" not in link)
    yield from modules_in(text)


def modules_in(text: str) -> Iterator[str]:
    for module in _MODULE.findall(text):
        path = module.rstrip(".").replace(".", "/")
        yield path if (REPOSITORY / path).is_dir() else f"{path}.py"


def test_everything_named_in_a_document_comment_or_docstring_exists() -> None:
    assert missing({name: references_in(name) for name in files(".md")}) == {}
    code = files(".py", ".toml", ".yaml", ".mjs", ".ci/run")
    assert missing({name: references_in_code(name) for name in code}) == {}


def references_in_code(source: str) -> Iterator[str]:
    text = (REPOSITORY / source).read_text("utf-8")
    named = (name for name in _FILE.findall(text) if not name.endswith(".flow"))
    yield from filter(is_ours, named)
    yield from modules_in(text)


def missing(named: dict[str, Iterator[str]]) -> dict[str, list[str]]:
    """Return what the files name that does not exist."""
    found = {
        file: [name for name in names if not exists(name, (REPOSITORY / file).parent)]
        for file, names in named.items()
    }
    return {file: names for file, names in found.items() if names}


def test_references_are_found() -> None:
    """So that the tests above cannot pass by finding nothing."""
    found = set(references_in(".github/CONTRIBUTING.md"))
    assert {
        "tests/end_to_end/peers/setup", "core/sockets/serve.py", "tests/bench",
        "../addon/mcp_tool_filter/docs/CHANGELOG.md",
    } <= found  # fmt: skip
    assert not exists("policy/no_such_file.py", REPOSITORY)
    assert not exists("no_such_file.py", REPOSITORY)


def test_the_table_of_rooms_has_each_part_and_about_its_size() -> None:
    table = {
        found[1]: int(found[3].replace(",", ""))
        for found in house.ROW.finditer(house.PAGE.read_text("utf-8"))
    }
    now = house.sizes()
    assert table.keys() == now.keys()
    off = {part: size for part, size in now.items() if abs(table[part] - size) > size / 4 + 100}
    assert not off, "run: python -m tests.house"


def test_the_page_about_options_names_them_as_they_are_declared() -> None:
    page = (PACKAGE / "docs" / "options.md").read_text("utf-8")
    rows = re.findall(r"^\| `--([\w-]+)` \| `([^`]+)` \| ([^|]*?) ?\| ", page, re.MULTILINE)
    in_mitmproxy = {name for name, option in OPTIONS.items() if option.key}
    assert {name for name, _, _ in rows} == in_mitmproxy
    for name, key, default in rows:
        option = OPTIONS[name]
        assert key == (f"{option.key}=false" if option.negates else option.key)
        if default.startswith("`"):
            assert default == f"`{option.default or option.text}`"
        else:  # words, or nothing at all
            assert option.default in ("", "auto")


_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_each_test_that_a_page_names_exists() -> None:
    named = {
        (page.name, file, test)
        for page in pages()
        for file, test in _TEST.findall(page.read_text("utf-8"))
    }
    assert len(named) > 60
    assert [one for one in sorted(named) if not has_test(*one[1:])] == []


@pytest.mark.parametrize("name", ["promises", "extensions"])
def test_each_row_of_a_table_of_promises_names_its_test(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if "---" not in row and not row.endswith("| test |")]
    assert len(rows) > 10
    assert [row for row in rows if not re.search(rf"\| {_TEST.pattern} \|$", row)] == []


def test_each_promise_about_security_names_its_test() -> None:
    page = (REPOSITORY / ".github" / "SECURITY.md").read_text("utf-8")
    promised = page.partition("## What we promise\n")[2].partition("\n## ")[0]
    promises = re.split(r"^- ", promised, flags=re.MULTILINE)[1:]
    assert len(promises) > 8
    assert [one for one in promises if not _TEST.search(one)] == []


_MOST_WORDS = 1_200


def test_no_page_is_long() -> None:
    """One page answers one question."""
    sizes = {page.name: len(page.read_text("utf-8").split()) for page in DOCS.rglob("*.md")}
    assert {name: size for name, size in sizes.items() if size > _MOST_WORDS} == {}
    assert len((REPOSITORY / "README.md").read_text("utf-8").split()) <= 1_000


def test_the_index_lists_every_page_once() -> None:
    listed = re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "README.md").read_text("utf-8"))
    own = [page.name for page in DOCS.glob("*.md") if page.name != "README.md"]
    assert sorted(listed) == sorted([*own, "decisions/README.md"])
    decisions = (DOCS / "decisions" / "README.md").read_text("utf-8")
    own_decisions = {page.name for page in (DOCS / "decisions").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", decisions)) == own_decisions
    assert sorted(TOPICS) == sorted(name.removesuffix(".md").lower() for name in own)


def test_each_link_to_a_heading_leads_to_one() -> None:
    wrong = []
    for page in pages():
        for name, anchor in _TO_A_HEADING.findall(page.read_text("utf-8")):
            target = (page.parent / name).resolve() if name else page
            if anchor not in anchors_of(target.read_text("utf-8")):
                wrong.append((page.name, f"{name}#{anchor}"))
    assert wrong == []


_TO_A_HEADING = re.compile(r"\]\(([\w./-]*\.md|)#([^)]+)\)")


def anchors_of(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings."""
    headings = re.findall(r"^#+ +(.*)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@each_row("block", [block for block in blocks() if block.kind in ("toml", "json", "yaml")])
def test_each_example_of_a_file_is_valid(block: Block) -> None:
    match block.kind:
        case "toml":
            schema = json.loads((DOCS / "config.schema.json").read_text("utf-8"))
            jsonschema.validate(tomllib.loads(block.text), schema)
        case "json":
            json.loads(block.text)
        case _:
            read, mistakes = read_source(block.text.encode())
            assert mistakes == []
            rules = json.loads((DOCS / "rules.schema.json").read_text("utf-8"))
            if block.text.startswith("interceptor:"):
                jsonschema.validate(to_plain(read.to_json()), rules)


_LOOKS_LIKE_A_COMMAND = re.compile(
    r"^(?: {4}|\t)?(?:\$ )?(?:[A-Z_]+=\S+ )?"
    r"(?:mcp-tool-filter|mitm(?:dump|web|proxy)|pipx?|uvx?|git|npx|python3?|curl) \S",
    re.MULTILINE,
)


def test_each_block_of_commands_is_marked_as_such() -> None:
    """Then tests/test_shown_examples.py runs it, or its mark says why not."""
    others = [block for block in blocks() if not block.is_commands]
    assert [block.text for block in others if _LOOKS_LIKE_A_COMMAND.search(block.text)] == []
    for page in pages():
        prose = _BLOCK.sub("", page.read_text("utf-8"))
        assert [line for line in prose.splitlines() if re.match(r" {4}mcp-tool|\$ ", line)] == []


def test_each_mark_gives_a_reason_or_names_a_test() -> None:
    wrong = [block.mark for block in blocks() if block.mark and not is_good(block)]
    assert wrong == []
    [unknown] = blocks_of("<!-- run by tests/test_docs.py::test_nothing -->\n```sh\na\n```\n")
    assert not is_good(unknown)


def is_good(block: Block) -> bool:
    how, _, what = block.mark.partition(": ")
    if how == "not run":
        return len(what.split()) > 3
    named = re.fullmatch(r"run by (tests/[\w/]+\.py)::(test_\w+)", block.mark)
    return named is not None and has_test(named[1], named[2])


def has_test(file: str, name: str) -> bool:
    path = REPOSITORY / file
    defined = rf"^\s*(?:async )?def {name}\("
    return path.is_file() and bool(re.search(defined, path.read_text("utf-8"), re.MULTILINE))
