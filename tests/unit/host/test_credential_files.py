"""Tests which files with credentials the settings of a sender name, and the proof that a process can read them."""

import os
from pathlib import Path

import pytest
from support.recorded import recorded_locals

from cyproducer.host.credential_files import CredentialFileError, credential_files, file_proofs, unproven_file

KERBEROS = {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({}, {}),
        ({"ssl_cafile": "/ca", "https_ca_location": "/ca", "ssl_truststore_location": "/store"}, {}),
        ({"ssl_certfile": "/cert", "ssl_keyfile": "/key"}, {"ssl_keyfile": "/key"}),
        ({"ssl_certfile": "/both"}, {"ssl_certfile": "/both"}),
        ({"ssl_keystore_location": "/store"}, {"ssl_keystore_location": "/store"}),
        ({**KERBEROS, "sasl_kerberos_keytab": "/keys"}, {"sasl_kerberos_keytab": "/keys"}),
        ({**KERBEROS, "sasl_kerberos_ticket_cache": "FILE:/t"}, {"sasl_kerberos_ticket_cache": "/t"}),
        ({**KERBEROS, "sasl_kerberos_ticket_cache": "FILE:/a:b"}, {"sasl_kerberos_ticket_cache": "/a:b"}),
        ({**KERBEROS, "sasl_kerberos_ticket_cache": "/t"}, {"sasl_kerberos_ticket_cache": "/t"}),
        ({**KERBEROS, "sasl_kerberos_ticket_cache": "KEYRING:persistent:7"}, {}),
        (KERBEROS, {"sasl_kerberos_ticket_cache": f"/tmp/krb5cc_{os.geteuid()}"}),
        ({"sasl_mechanism": "GSSAPI", "security_protocol": "SSL"}, {}),
        ({"sasl_oauthbearer_token_endpoint_url": "https://host/token"}, {}),
        (
            {"sasl_oauthbearer_token_endpoint_url": "file:///var/a%20b"},
            {"sasl_oauthbearer_token_endpoint_url": "/var/a b"},
        ),
    ],
)
def test_these_files_have_credentials(settings: dict[str, str], files: dict[str, str]) -> None:
    assert credential_files(settings) == files


def test_a_proof_is_about_the_content_and_the_subject(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    files = {"a": str(first), "b": str(second)}
    first.write_bytes(b"1")
    proofs = file_proofs(files, "subject")
    assert unproven_file(files, proofs, "subject") == ""
    assert unproven_file(files, proofs, "another") == "a"
    assert unproven_file(files, {"b": proofs["b"]}, "subject") == "a"
    for wrong in (None, [], {"a": 5}, {"a": "é"}):
        assert unproven_file(files, wrong, "subject") == "a"
    second.write_bytes(b"2")
    assert unproven_file(files, proofs, "subject") == "b"


def test_no_local_variable_shows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(b"marked-key")
    with pytest.raises(UnicodeEncodeError) as caught:
        file_proofs({"ssl_keyfile": str(path)}, "\ud800")
    recorded = "".join(recorded_locals(caught.value))
    assert "ssl_keyfile" in recorded
    assert "marked-key" not in recorded
    assert b"marked-key".hex() not in recorded


def test_what_is_no_file_has_no_proof(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CredentialFileError, match=f"setting: {path} is not a regular file"):
            file_proofs({"setting": str(path)}, "subject")
