"""The files of certificates: the client trusts ours too, we trust what it trusts."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from mcp_tool_filter.adapters.run.trust import write_bundles
from mcp_tool_filter.errors import StartError

OURS = b"-----BEGIN CERTIFICATE-----\nours\n"
THEIRS = b"-----BEGIN CERTIFICATE-----\ntheirs\n"


def test_the_client_trusts_us_and_both_trust_what_it_trusted_before(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.pem"
    theirs.write_bytes(THEIRS)
    environment = {"NODE_EXTRA_CA_CERTS": str(theirs)}
    client, upstream = write_bundles(tmp_path, ours=OURS, own=None, environment=environment)
    usual = Path(certifi.where()).read_bytes()
    for file in (client, upstream):
        assert usual in file.read_bytes()
        assert THEIRS in file.read_bytes()
    assert OURS in client.read_bytes()
    assert OURS not in upstream.read_bytes()


def test_a_file_that_the_user_names_must_have_certificates(tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(b"nothing")
    with pytest.raises(StartError, match="Cannot read --ca"):
        write_bundles(tmp_path, ours=OURS, own=str(own), environment={})
    own.write_bytes(THEIRS)
    client, _ = write_bundles(tmp_path, ours=OURS, own=str(own), environment={})
    assert THEIRS in client.read_bytes()


def test_missing_files_are_left_out(tmp_path: Path) -> None:
    environment = {"SSL_CERT_FILE": str(tmp_path / "missing.pem")}
    client, _ = write_bundles(tmp_path, ours=OURS, own=None, environment=environment)
    assert OURS in client.read_bytes()
