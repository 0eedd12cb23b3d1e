"""What makes the repository a project (workflows, forms, hooks), and what is built of it."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from mcp_tool_filter import IS_PUBLISHED, __version__
from mcp_tool_filter.cli.flags import UsageError
from mcp_tool_filter.cli.table import COMMANDS
from tests.cli.launched import surroundings
from tests.programs import skip_or_fail
from tests.proxy import REPOSITORY
from tests.stdio_client import upstream
from tests.test_docs import tracked

GITHUB = REPOSITORY / ".github"
PLUGIN = REPOSITORY / "addon" / "claude-code"
DOCS = REPOSITORY / "addon" / "mcp_tool_filter" / "docs"
UNIT = DOCS / "systemd" / "mcp-tool-filter.service"
ACTION = ".github/actions/lock-check/action.yml"
_KINDS = {
    ".github/workflows/ci.yml": "github-workflows",
    ".github/workflows/release.yml": "github-workflows",
    ACTION: "github-actions",
    ".github/dependabot.yml": "dependabot",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/idea.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}
_TOP = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "addon", "tests", "recordings"}
_REGISTRIES = ("pypi", "pythonhosted", "npmjs", "ghcr", "docker", "quay", "gcr")


def parsed(name: str) -> Any:
    return YAML(typ="safe").load(plain(name))


def plain(name: str) -> str:
    return (REPOSITORY / name).read_text("utf-8")


def every(key: str, value: object) -> Iterator[Any]:
    """Yield each value of a key, at every depth."""
    if isinstance(value, dict):
        yield from (one for name, one in value.items() if name == key)
        for one in value.values():
            yield from every(key, one)
    elif isinstance(value, list):
        for one in value:
            yield from every(key, one)


def test_each_file_for_github_fits_its_schema() -> None:
    described = {name for name in tracked() if re.match(r"\.github/.*\.ya?ml$", name)}
    assert described == set(_KINDS)
    try:
        schemas = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    except ModuleNotFoundError:
        skip_or_fail("check-jsonschema is not installed")
    for name, kind in _KINDS.items():
        schema = json.loads((schemas / f"{kind}.json").read_text("utf-8"))
        checker = jsonschema.validators.validator_for(schema)(schema)
        assert [error.message for error in checker.iter_errors(parsed(name))] == [], name


def test_actions_of_others_have_a_full_version() -> None:
    """A moved branch or tag such as v4 must not change what a release runs."""
    used = [one for name in _KINDS for one in every("uses", parsed(name))]
    assert len(used) > 10
    loose = [one for one in used if not re.search(r"^\./|@v\d+\.\d+\.\d+$", one)]
    assert loose == []


def test_each_workflow_may_only_read_unless_a_job_says_otherwise() -> None:
    for name, kind in _KINDS.items():
        if kind == "github-workflows":
            assert parsed(name)["permissions"] == {"contents": "read"}, name


def test_each_shell_line_parses() -> None:
    lines = [one for name in _KINDS for one in every("run", parsed(name))]
    lines += [(REPOSITORY / ".ci" / name).read_text() for name in os.listdir(REPOSITORY / ".ci")]
    assert len(lines) > 10
    for line in lines:
        plain = re.sub(r"\$\{\{.*?\}\}", "x", line)
        subprocess.run(["bash", "-n", "-c", plain], check=True)
        assert plain == line, f"{line}: what comes from outside belongs in a variable"


def test_each_path_in_a_workflow_exists() -> None:
    named = {
        (name, path)
        for name in _KINDS
        for path in re.findall(r"(?<![\w./])(?:tests|addon|\.ci|\.github)/[\w./-]*\w", plain(name))
    }
    assert len(named) > 8
    assert {(name, path) for name, path in named if not (REPOSITORY / path).exists()} == set()


def test_no_file_names_the_host_of_a_package_registry() -> None:
    ends = r"\.(?:org|com|io)\b"
    host = re.compile(rf"(?<![\w.-])(?:[\w-]+\.)*(?:{'|'.join(_REGISTRIES)}){ends}")
    named = {}
    for name in tracked():
        path = REPOSITORY / name
        if path.is_file() and path.suffix not in (".flow", ".png"):
            named[name] = host.findall(path.read_text("utf-8", errors="replace"))
    assert {name: found for name, found in named.items() if found} == {}


def test_the_top_of_the_repository_stays_small() -> None:
    top = {name.partition("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} == _TOP


def test_the_action_compares_a_lock(tmp_path: Path) -> None:
    """Its last step, as a runner would run it."""
    *_, last = parsed(ACTION)["runs"]["steps"]
    [program] = [tmp_path / "mcp-tool-filter" / "bin"]
    program.mkdir(parents=True)
    (program / "mcp-tool-filter").symlink_to(Path(sys.executable).parent / "mcp-tool-filter")
    words = [sys.executable, "-m", "mcp_tool_filter", "lock", "tools.lock", "--"]
    env = surroundings(tmp_path) | {"RUNNER_TEMP": str(tmp_path)}
    subprocess.run([*words, *upstream()], check=True, env=env, cwd=tmp_path, capture_output=True)
    inputs = dict.fromkeys(last["env"], "") | {"LOCK": "tools.lock", "SARIF": "out.sarif"}
    for more, status in (([], 0), (["--tools", "other"], 1)):
        inputs["COMMAND"] = " ".join([*upstream(), *more])
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", last["run"]],
            env=env | inputs, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == status, ended.stderr
        assert json.loads((tmp_path / "out.sarif").read_text())["version"] == "2.1.0"


def test_the_hook_for_other_repositories_takes_a_lock_and_a_server(tmp_path: Path) -> None:
    [hook] = parsed(".pre-commit-hooks.yaml")
    words = [*hook["entry"].split(), "tools.lock", "--upstream-cmd", " ".join(upstream())]
    assert (hook["language"], hook["pass_filenames"], words[0]) == (
        "python", False, "mcp-tool-filter",
    )  # fmt: skip
    words[:1] = [sys.executable, "-m", "mcp_tool_filter"]
    env, name = surroundings(tmp_path), "tools.lock"
    made = [*words[:4], name, *words[-2:]]
    subprocess.run([one for one in made if one != "--check"], check=True, env=env, cwd=tmp_path)
    assert subprocess.run(words, env=env, cwd=tmp_path, check=False).returncode == 0


def test_the_unit_of_systemd_starts_what_there_is() -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    unit.read_string(UNIT.read_text("utf-8"))
    program, name, *flags = unit["Service"]["ExecStart"].split()
    assert Path(program).name == "mcp-tool-filter"
    COMMANDS[name].check(COMMANDS[name].parse(flags))
    assert unit["Service"]["RestartPreventExitStatus"] == str(UsageError.exit_status)
    assert unit["Install"]["WantedBy"] == "default.target"


def test_no_text_installs_us_from_an_index_before_the_name_is_ours() -> None:
    if IS_PUBLISHED:
        return
    orders = re.compile(
        r"(?:pip3? install|pipx (?:install|run|inject \S+)|uvx|uv (?:add|tool (?:install|run)))"
        r"(?: -\S+)* [\"']?mcp[-_]tool[-_]filter\b"
    )
    found = {}
    for name in tracked():
        if not name.startswith("tests/") and Path(name).suffix not in (".flow", ".png"):
            found[name] = orders.findall((REPOSITORY / name).read_text("utf-8"))
    assert {name: orders for name, orders in found.items() if orders} == {}
    assert orders.search("uvx mcp-tool-filter")
    assert orders.search('pip install -q "mcp-tool-filter[otel]"')


@pytest.mark.parametrize("is_published", [True, False])
def test_one_constant_decides_what_is_said_about_installing(is_published: bool) -> None:
    script = (
        f"import mcp_tool_filter as us; us.IS_PUBLISHED = {is_published}\n"
        "import sys; from mcp_tool_filter.cli import launcher; launcher.main(['login', '--help'])\n"
        "sys.stderr = sys.stdout; launcher._refuse_python()\n"
        "print(us.how_to_install('otel'))"
    )
    said = subprocess.check_output([sys.executable, "-c", script], text=True)
    named = [
        "'mcp-tool-filter[keyring]'",
        "--python 3.12 mcp-tool-filter",
        "'mcp-tool-filter[otel]'",
    ]
    plain = " ".join(said.split())
    assert [one in plain for one in named] == [is_published] * 3
    assert ("clone" in plain) is not is_published


def test_what_others_list_has_our_version_and_a_command_that_there_is() -> None:
    """The MCP registry, and Claude Code's plugins. (``claude plugin validate`` accepts it, too.)"""
    listed = json.loads((GITHUB / "server.json").read_text("utf-8"))
    plugin = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text("utf-8"))
    [package] = listed["packages"]
    assert {listed["version"], package["version"], plugin["version"]} == {__version__}
    assert len(listed["description"]) <= 100
    assert listed["description"] == plugin["description"]
    arguments = [one.get("value") or one["name"] for one in package["packageArguments"]]
    entry = plugin["mcpServers"]["filtered"]
    assert entry["command"] == package["identifier"] == "mcp-tool-filter"
    for name, *flags in (entry["args"], [*arguments, "servers.toml"]):
        COMMANDS[name].check(COMMANDS[name].parse(flags))
    market = json.loads((REPOSITORY / ".claude-plugin" / "marketplace.json").read_text("utf-8"))
    [only] = market["plugins"]
    assert (REPOSITORY / only["source"]).resolve() == PLUGIN
    assert (only["name"], only["description"]) == (plugin["name"], plugin["description"])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    here = project["urls"]["Repository"]
    assert here == plugin["homepage"] == listed["repository"]["url"]
    assert f"mcp-name: {listed['name']} " in (REPOSITORY / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    ended = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if "No module named hatchling" in ended.stderr:
        skip_or_fail("hatchling is not installed")
    assert ended.returncode == 0, ended.stderr
    return folder


def test_the_wheel_has_what_a_user_needs_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    assert wheel.name == f"mcp_tool_filter-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"mcp_tool_filter-{__version__}"
    parts = {name.partition("/")[0] for name in names}
    assert parts == {"mcp_tool_filter", "jsregex", f"{info}.dist-info", f"{info}.data"}
    assert {
        "mcp_tool_filter/tool_filter.py", "mcp_tool_filter/py.typed",
        "mcp_tool_filter/docs/config.schema.json", "mcp_tool_filter/docs/rules.schema.json",
        "mcp_tool_filter/docs/audit-line.schema.json",
        "mcp_tool_filter/docs/systemd/mcp-tool-filter.service",
        f"{info}.dist-info/licenses/LICENSE", f"{info}.data/data/share/man/man1/mcp-tool-filter.1",
    } <= names  # fmt: skip


def test_the_source_archive_has_only_our_files(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert names - {"PKG-INFO", ".gitignore"} <= tracked()
    assert {"README.md", "CHANGELOG.md", "addon/tool_filter.py", "tests/conftest.py"} <= names


def test_the_page_of_an_index_has_absolute_links(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"mcp_tool_filter-{__version__}.dist-info/METADATA").decode()
    page = email.message_from_string(text)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    urls = [f"{name}, {url}" for name, url in project["urls"].items()]
    assert page.get_all("Project-URL") == urls
    shown = str(page.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"", shown)
    assert len(links) > 3
    assert [link for link in map("".join, links) if not re.match("https?://|#", link)] == []
    ours = [link for link in map("".join, links) if f"/v{__version__}/" in link]
    here = project["urls"]["Repository"]
    for link in ours:
        path = re.sub(rf"^{re.escape(here)}/(?:blob|raw)/v{re.escape(__version__)}/", "", link)
        assert (REPOSITORY / path.partition("#")[0]).exists(), link
    assert ours != []
