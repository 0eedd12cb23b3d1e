"""``mcp-tool-filter login --keyring``: tokens in the system's keyring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands.logging_in import run, shows_no_secret, store_of
from tests.oauth_upstream import oauth_upstream

FAKE_KEYRING = """
import json, os, pathlib
from keyring import errors
_file = pathlib.Path(os.environ["FAKE_KEYRING"])

def _all():
    if not _file.exists():
        return {}
    if _file.read_text() == "locked":
        raise errors.KeyringError("it is locked")
    return json.loads(_file.read_text())

def get_password(service, name):
    return _all().get(f"{service} {name}")

def set_password(service, name, password):
    _file.write_text(json.dumps(_all() | {f"{service} {name}": password}))

def delete_password(service, name):
    kept = _all()
    del kept[f"{service} {name}"]
    _file.write_text(json.dumps(kept))
"""


@pytest.fixture
def keyring(tmp_path: Path) -> dict[str, str]:
    """Variables with which a process finds a keyring that keeps all in a file."""
    package = tmp_path / "fake" / "keyring"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_KEYRING)
    (package / "errors.py").write_text("class KeyringError(Exception):\n    pass\n")
    kept = str(tmp_path / "kept.json")
    return {"PYTHONPATH": str(tmp_path / "fake"), "FAKE_KEYRING": kept}


def test_tokens_can_be_stored_in_the_systems_keyring(
    tmp_path: Path, keyring: dict[str, str]
) -> None:
    with oauth_upstream() as upstream:
        listing = ("--upstream", upstream.url, "--list-tools", "--format", "names")
        status, _, err = run("login", upstream.url, "--keyring", home=tmp_path, **keyring)
        assert status == 0, err
        path = store_of(tmp_path).path_of(upstream.url)
        kept = Path(keyring["FAKE_KEYRING"])
        for _ in range(2):  # the second time with a renewal
            assert shows_no_secret(upstream, path.read_text())
            assert "access-" in kept.read_text()
            assert run(*listing, home=tmp_path, **keyring)[0] == 0
            upstream.end_access()
        assert upstream.renewals == 1
        assert run("login", "--list", home=tmp_path, **keyring)[1].split("\t")[1] == "renews itself"
        kept.write_text("locked")
        status, _, err = run(*listing, home=tmp_path, **keyring)
        assert err == "Error: Cannot use the system's keyring\nit is locked\n"
        kept.write_text("{}")
        status, _, err = run(*listing, home=tmp_path, **keyring)
        assert f"Type: mcp-tool-filter login {upstream.url}" in err


@pytest.mark.parametrize("then", ["logout", "login"])
def test_logging_out_or_in_again_removes_secrets_from_the_keyring(
    tmp_path: Path, keyring: dict[str, str], then: str
) -> None:
    with oauth_upstream() as upstream:
        assert run("login", upstream.url, "--keyring", home=tmp_path, **keyring)[0] == 0
        assert run(then, upstream.url, home=tmp_path, **keyring)[0] == 0
        assert json.loads(Path(keyring["FAKE_KEYRING"]).read_text()) == {}


def test_a_missing_keyring_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "keyring.py").write_text("raise ImportError")
    args = ("login", "http://127.0.0.1:1/mcp", "--keyring")
    status, _, err = run(*args, home=tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, err.splitlines()[1]) == (1, "Type: pip install 'mcp-tool-filter[keyring]'")
