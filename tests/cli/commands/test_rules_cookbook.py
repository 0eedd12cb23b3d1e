"""Every example of the cookbook has test cases, and passes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main

DOCS = Path(__file__).parents[3] / "addon" / "mcp_tool_filter" / "docs"
EXAMPLES = sorted(
    path for path in (DOCS / "rules").glob("*.yaml") if not path.name.endswith(".cases.yaml")
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_does_what_it_says(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = example.with_suffix(".cases.yaml")
    assert main(["rules", "test", str(example), str(cases)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_names_each_example(example: Path) -> None:
    assert f"(rules/{example.name})" in (DOCS / "rules.md").read_text()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 11
