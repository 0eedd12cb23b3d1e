"""The page of first tasks is a script: it runs in a fresh clone, with an empty home folder.

A newcomer's clone has only what git tracks. Its programs are made here without a package index;
``test_the_installation`` makes them as the page says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.launched import surroundings
from tests.clones import clone_into, install_into
from tests.proxy import REPOSITORY
from tests.raw_upstream import free_port
from tests.shown import DOCS, blocks_of

pytestmark = [
    pytest.mark.rest,
    pytest.mark.skipif(os.name == "nt", reason="the page is for a POSIX shell"),
]

INSTALLATION, *TASKS = re.split(
    r"^## ", (DOCS / "first-tasks.md").read_text("utf-8"), flags=re.MULTILINE
)
TASKS = [task for task in TASKS if task[0].isdigit()]

WHAT_A_TASK_SHOWS = {
    "1": "The agent saw 20 tools",
    "2": "2 servers, 5 tools",
    "3": "",
    "4": "read_file",
    "5": "read_file: denied by ^read_",
    "6": "Only files in /home/me/project can be read",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return clone_into(tmp_path / "clone")


def of_pip() -> dict[str, str]:
    """How pip finds its index, wherever HOME is: the proxy, and the settings of this machine."""
    ours = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    return ({"PIP_CONFIG_FILE": str(settings)} if settings.exists() else {}) | ours


def run_shell(
    script: str, clone: Path, home: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = surroundings(home, more)
    environment.pop("PYTHONPATH")
    environment.pop("XDG_CONFIG_HOME", None)
    # python3 is the one of these tests: another one may be too old.
    environment["PATH"] = f"{sys.base_prefix}/bin{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", "-c", f"set -eum\n{script}"], stdin=subprocess.DEVNULL, cwd=clone,
        capture_output=True, text=True, encoding="utf-8", timeout=600, check=False, env=environment,
    )  # fmt: skip


def marked(test: str) -> str:
    """Return the commands of the README and the page that this test has to run."""
    text = (REPOSITORY / "README.md").read_text("utf-8") + INSTALLATION
    mark = f"run by tests/test_first_tasks.py::{test}"
    return "\n".join(block.text for block in blocks_of(text) if block.mark == mark)


def script_of(section: str) -> str:
    return "\n".join(block.text for block in blocks_of(section) if block.is_commands)


def on_free_ports(script: str) -> str:
    """Let the script use ports of its own, and wait as long as a busy machine needs."""
    ours, theirs = free_port(), free_port()
    script = script.replace("6280", str(theirs))
    script = script.replace("--read-only &", f"--read-only --port {ours} &")
    for port in (theirs, ours):
        listens = f"(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null"
        script = script.replace("sleep 3", f"until {listens}; do sleep 0.2; done", 1)
    return script


def test_each_task(clone: Path, tmp_path: Path) -> None:
    install_into(clone)
    home = tmp_path / "home"
    home.mkdir()
    begin = 'export PATH="$PWD/.venv/bin:$PATH"\n'
    assert [task[0] for task in TASKS] == list(WHAT_A_TASK_SHOWS)
    for task in TASKS:
        ended = run_shell(on_free_ports(begin + script_of(task)), clone, home)
        assert ended.returncode == 0, task + ended.stdout + ended.stderr
        assert WHAT_A_TASK_SHOWS[task[0]] in ended.stdout, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr


def test_the_installation(clone: Path, tmp_path: Path) -> None:
    """It needs a package index, and takes half a minute."""
    script = f"{marked('test_the_installation')}\nmcp-tool-filter --version"
    ended = run_shell(script, clone, tmp_path / "home", of_pip())
    assert ended.returncode == 0, ended.stderr
    assert "The agent saw 20 tools" in ended.stdout
    assert "\nmcp-tool-filter " in ended.stdout
