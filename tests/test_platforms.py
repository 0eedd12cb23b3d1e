"""What only Linux and macOS have is not needed elsewhere, or is missed in one sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcp_tool_filter.cli.commands import look
from mcp_tool_filter.core.errors import ConnectFailed, StartError
from mcp_tool_filter.rooms.clients.files import Whereabouts, places
from mcp_tool_filter.rooms.rules import scripts
from mcp_tool_filter.rooms.rules.rule_effects import EffectFailed, RunScript
from mcp_tool_filter.rooms.stdio import child
from tests.cli.launched import ADDON, surroundings
from tests.proxy import REPOSITORY
from tests.rows import each_row
from tests.session_upstream import session_upstream
from tests.stdio_client import started, upstream
from tests.windows import MODULES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its own facts are there")
ON_WINDOWS = [sys.executable, "-m", "tests.windows"]


def env_of(home: Path) -> dict[str, str]:
    data = {"APPDATA": str(home / "AppData"), "PYTHONPATH": f"{ADDON}{os.pathsep}{REPOSITORY}"}
    return surroundings(home) | data


def on_windows(home: Path, *words: str, status: int = 0) -> tuple[str, str]:
    """Run our command with the facts of Windows; return its stdout and stderr."""
    ended = subprocess.run(
        [*ON_WINDOWS, *words], capture_output=True, text=True, check=False, env=env_of(home),
        stdin=subprocess.DEVNULL, cwd=home,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == status, ended.stderr
    return ended.stdout, ended.stderr


def test_every_module_can_be_imported_without_what_windows_lacks(tmp_path: Path) -> None:
    """Once with everything, so that Python's and others' modules are there; then ours again."""
    script = f"""
import pkgutil, sys
from importlib import import_module
import jsregex, mcp_tool_filter
from tests.windows import hide_modules
OURS = ("mcp_tool_filter", "jsregex")
names = [one.name for package in (jsregex, mcp_tool_filter)
         for one in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
         if not one.name.endswith("__main__")]
for name in names:
    import_module(name)
for name in [one for one in sys.modules if one.partition(".")[0] in OURS]:
    del sys.modules[name]
hide_modules()
for name in {MODULES!r}:
    try:
        import_module(name)
    except ModuleNotFoundError:
        continue
    sys.exit(name + " is not hidden")
for name in names:
    import_module(name)
print(len(names))
"""
    said = subprocess.check_output([sys.executable, "-c", script], env=env_of(tmp_path), text=True)
    assert int(said.split()[-1]) > 200


def test_nothing_of_ours_asks_for_them_at_all(tmp_path: Path) -> None:
    """In a new process without them. (urwid, which shows the list of ``pick``, needs them here; on
    Windows it has another way.)"""
    script = """
import pkgutil, sys
from importlib import import_module
from tests.windows import hide_modules
hide_modules()
import jsregex, mcp_tool_filter
failed = {}
for package in (jsregex, mcp_tool_filter):
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            one.name.endswith("__main__") or import_module(one.name)
        except ImportError as error:
            failed[one.name] = str(error)
print(failed)
"""
    said = subprocess.check_output([sys.executable, "-c", script], env=env_of(tmp_path), text=True)
    assert said == "{'mcp_tool_filter.cli.picker': \"No module named 'fcntl'\"}\n"


def test_a_list_that_cannot_be_shown_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp_tool_filter.cli.picker", None)
    monkeypatch.setattr(look, "is_terminal", lambda _stream: True)
    with pytest.raises(StartError) as raised:
        look.choose([look.Tool("a", 1, "")])
    assert str(raised.value).splitlines()[0] == "Error: The tools cannot be shown in this terminal"
    assert "pick --names a,b" in str(raised.value)


@each_row(
    ("words", "wanted"),
    [
        (["--version"], "mcp-tool-filter "),
        (["check-pattern", "^a"], '"verdict": "ok"'),
        (["clients"], "No MCP servers found"),
        (["status"], "no server in the config file"),
        ([], "demo"),
        (["help", "platforms"], "# Platforms"),
        (["--help"], r"or in %APPDATA%\mcp-tool-filter\config.toml (or"),
        (["--list-tools", "--deny", "^delete_", "--", *upstream()], "1 would be hidden"),
        (["pick", "--names", "delete_file", "--", *upstream()], "'^delete_file$'"),
        (["lock", "tools.lock", "--", *upstream()], ""),
        (["lock", "--check", "tools.lock", "--sarif", "a", "--", *upstream()], "no tool differs"),
        (["completion", "bash"], "complete "),
    ],
)  # fmt: skip
def test_commands_work_without_it(words: list[str], wanted: str, home: Path) -> None:
    assert wanted in "".join(on_windows(home, *words))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_the_audit_log_is_refused_in_one_sentence(home: Path) -> None:
    _, said = on_windows(home, "--audit-log", "audit.jsonl", "--", *upstream(), status=1)
    assert said.splitlines() == [
        "Error: Cannot write the audit log audit.jsonl",
        "This system lacks what the chain of its lines needs",
    ]
    assert not (home / "audit.jsonl").exists()


def test_the_default_file_and_clients_files_are_below_appdata(home: Path) -> None:
    file = home / "AppData" / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir(parents=True)
    command, *args = upstream()
    listed = {"mcpServers": {"files": {"command": command, "args": args}}}
    file.write_text(json.dumps(listed))
    assert "claude-desktop\tuser\tfiles\tno" in on_windows(home, "clients")[0]
    wrap = ["wrap", "claude-desktop", "--all", "--deny", "^delete_", "--yes", "--into"]
    own = home / "AppData" / "mcp-tool-filter" / "config.toml"
    on_windows(home, *wrap, str(own))
    assert "[servers.files]" in own.read_text()
    table = on_windows(home, "--list-tools", "--server", "files")[0]
    assert 'delete_file\tdenied by "^delete_"' in table
    on_windows(home, "unwrap", "--all", "--yes")
    assert json.loads(file.read_text()) == listed


def test_a_command_over_stdio_is_filtered(home: Path) -> None:
    words = [*ON_WINDOWS[1:], "--deny", "^delete_", "--", *upstream()]
    with started(sys.executable, *words, home=home, environment=env_of(home)) as client:
        client.opens()
        listed = client.asks("tools/list")["result"]["tools"]
        assert [one["name"] for one in listed] == ["read_file", "write_file"]
        assert client.calls("delete_file")["error"]["code"] == -32601
        assert "result" in client.calls("read_file")
        assert client.leaves() == 0


def test_a_server_with_a_url_is_filtered_until_ctrl_c(home: Path) -> None:
    with session_upstream() as there:
        words = ["--upstream", there.url, "--deny", "^delete_", "--port", "0"]
        with subprocess.Popen(
            [*ON_WINDOWS, *words], stderr=subprocess.PIPE, env=env_of(home), cwd=home, text=True
        ) as filter:
            assert filter.stderr
            line = next(one for one in filter.stderr if "MCP tool filter: " in one)
            found = re.search(r"http://127\.0\.0\.1:\d+/mcp", line)
            assert found, line
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "delete_file"},
            }
            request = urllib.request.Request(found[0], json.dumps(call).encode(), _JSON)
            with urllib.request.urlopen(request) as answer:
                assert "Tool not found: delete_file" in answer.read().decode()
            filter.send_signal(signal.SIGINT)
            assert "Traceback" not in filter.stderr.read()
        assert filter.returncode == 0


_JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def test_npx_is_found_as_npx_cmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows starts no command by its name alone if it is no .exe."""
    found = tmp_path / "npx.cmd"
    found.write_text("#!/bin/sh\necho it is $*\n")
    found.chmod(0o755)
    environment = {"PATH": str(tmp_path)}

    def which(program: str, path: str) -> str | None:
        file = Path(path) / f"{program}.cmd"  # PATHEXT has it
        return str(file) if file.exists() else None

    monkeypatch.setattr("shutil.which", which)
    monkeypatch.setattr(child, "sys", SimpleNamespace(platform="win32"))
    started = child._start(["npx", "-y", "it"], environment, None, subprocess.DEVNULL)
    assert started.communicate()[0] == b"it is -y it\n"
    with pytest.raises(ConnectFailed, match="Command not found: uvx"):
        child._start(["uvx"], environment, None, subprocess.DEVNULL)


async def test_a_script_of_a_rule_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no process groups: the script itself is ended."""
    monkeypatch.setattr(scripts, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(scripts, "os", SimpleNamespace(environ=os.environ))
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    effect = RunScript((str(script),), (), b"", timeout=2, decides=True, rule="slow")
    with pytest.raises(EffectFailed, match="longer than 2s"):
        await scripts.run_script(effect, most_output=100)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@each_row("platform", ["linux", "darwin", "win32"])
def test_each_platform_has_its_own_folder_for_desktop_programs(platform: str) -> None:
    here = Whereabouts(Path("/home/me"), Path("/home/me/project"), {}, platform)
    [file] = [one.file for one in places(here) if one.client == "claude-desktop"]
    assert (
        str(file.relative_to("/home/me"))
        == {
            "linux": ".config/Claude/claude_desktop_config.json",
            "darwin": "Library/Application Support/Claude/claude_desktop_config.json",
            "win32": "AppData/Roaming/Claude/claude_desktop_config.json",
        }[platform]
    )
