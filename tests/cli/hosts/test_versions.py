"""The launcher is as particular about mitmproxy as the script for mitmdump."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.launched import ADDON, run


@pytest.mark.parametrize("version", ["11.1.3", "12.2.1", "12.3.0", "13.0.0.dev"])
@pytest.mark.parametrize(
    "words",
    [["-u", "http://127.0.0.1:1", "--inspect", "-p", "0"], ["replay", "none.flow"]],
    ids=["inspect", "replay"],
)
def test_another_version_of_mitmproxy_is_refused(
    version: str, words: list[str], tmp_path: Path
) -> None:
    patch = f"import mitmproxy.version; mitmproxy.version.VERSION = {version!r}"
    (tmp_path / "sitecustomize.py").write_text(patch)
    ended = run(*words, home=tmp_path, environment={"PYTHONPATH": f"{tmp_path}:{ADDON}"})
    said = (
        "Error: The tool filter cannot start\n"
        f"It needs mitmproxy 12.2, from 12.2.2 on; this is {version}\n"
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (1, said, "")
