"""Every example of the cookbook has test cases, and passes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main

README = Path(__file__).parents[3] / "README.md"
DOCS = README.parent / "addon" / "mcp_tool_filter" / "docs"
EXAMPLES = sorted(
    path for path in (DOCS / "rules").glob("*.yaml") if not path.name.endswith(".cases.yaml")
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_cookbook_example_does_what_it_says(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = example.with_suffix(".cases.yaml")
    assert main(["rules", "test", str(example), str(cases)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_names_each_example(example: Path) -> None:
    assert f"(rules/{example.name})" in (DOCS / "rules.md").read_text()


def test_the_cookbook_has_examples() -> None:
    assert len(EXAMPLES) >= 11


def test_the_rule_in_the_readme_keeps_files_inside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "policy.yaml").write_text(shown)
    inside = ["/home/me/project", "/home/me/project/notes/a b.txt"]
    outside = [
        "/etc/passwd",
        "/home/me/project/../.ssh/id",
        "/home/me/projects",
        ["/home/me/project"],
        1,
    ]
    paths = [(path, "pass") for path in inside] + [(path, "block") for path in outside]
    cases = [
        {"name": str(path), "message": reading(path), "expect": expected}
        for path, expected in paths
    ]
    (tmp_path / "cases.yaml").write_text(json.dumps({"cases": cases}))
    words = ["rules", "test", str(tmp_path / "policy.yaml"), str(tmp_path / "cases.yaml")]
    assert main(words) == 0, capsys.readouterr()


def reading(path: object) -> dict[str, object]:
    params = {"name": "read_file", "arguments": {"path": path}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
