"""Tests the keys and certificates of the secure listeners with the TLS of Python."""

import socket
import ssl
import threading

import pytest
from devkafka.keys import Keys, MissingLibraryError
from support.process import run_script


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path / "made" / "keys")


def mode(path):
    return path.stat().st_mode & 0o777


def handshake(server_identity, client_context, host, server_ca=None):
    """Return the subjects (server's, client's) of a TLS handshake. Raise its error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_identity.certificate, server_identity.key, server_identity.password)
    if server_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(server_ca)
    one, two = socket.socketpair()
    found = []

    def serve():
        try:
            with context.wrap_socket(one, server_side=True) as connection:
                found.append(connection.getpeercert())
                connection.sendall(b"a")
        except OSError as error:
            found.append(error)
            one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client_context.wrap_socket(two, server_hostname=host) as connection:
            connection.recv(1)
            mine = connection.getpeercert()
    finally:
        two.close()
        thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return mine["subject"], found[0] and found[0]["subject"]


def trusting(ca, identity=None):
    context = ssl.create_default_context(cafile=str(ca))
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key, identity.password)
    return context


def name(common_name):
    return (
        (("organizationName", "cyproducer"),),
        (("organizationalUnitName", "test"),),
        (("commonName", common_name),),
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_broker_is_accepted_by_both_names(keys, host):
    assert handshake(keys.broker, trusting(keys.ca), host) == (name("broker"), None)


def test_client_is_accepted_by_the_ca(keys):
    for password in (None, "a password"):
        client = keys.client("alice", password=password)
        assert handshake(keys.broker, trusting(keys.ca, client), "localhost", keys.ca)[1] == name("alice")
    assert b"ENCRYPTED PRIVATE KEY" in client.key.read_bytes()
    assert "a password" not in repr(client)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"expired": True}, "expired"),
        ({"wrong_host": True}, "Hostname mismatch"),
        ({"other_ca": True}, "unable to get"),
    ],
)
def test_wrong_certificate_of_the_broker(keys, wrong, message):
    keys.reissue_broker(**wrong)
    with pytest.raises(ssl.SSLCertVerificationError, match=message):
        handshake(keys.broker, trusting(keys.ca), "localhost")
    keys.reissue_broker()
    handshake(keys.broker, trusting(keys.ca), "localhost")


@pytest.mark.parametrize(("wrong", "message"), [("expired", "expired"), ("other_ca", "unable to get|unknown ca")])
def test_wrong_certificate_of_a_client(keys, wrong, message):
    client = keys.client("mallory", **{wrong: True})
    with pytest.raises(ssl.SSLError, match=message):
        handshake(keys.broker, trusting(keys.ca, client), "localhost", keys.ca)


def test_certificate_of_another_server(keys):
    server = keys.server("proxy", "proxy.example")
    assert handshake(server, trusting(keys.ca), "proxy.example")[0] == name("proxy")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, trusting(keys.ca), "localhost")


def test_only_the_owner_reads_the_files(keys):
    client = keys.client("alice")
    keys.pkcs12(client, "a password")
    assert mode(keys.directory) == 0o700
    assert {mode(path) for path in keys.directory.iterdir()} == {0o600}


def test_certificates_are_issued_again_into_the_same_files(keys):
    client = keys.client("alice")
    before = {path: path.read_bytes() for path in (client.certificate, client.key, client.keystore)}
    files = sorted(keys.directory.iterdir())
    with open(client.keystore, "rb") as reader:  # it opened the file before
        assert keys.client("alice") == client
        assert reader.read() == before[client.keystore]
    assert sorted(keys.directory.iterdir()) == files
    assert all(path.read_bytes() != old for path, old in before.items())
    assert client.keystore.read_bytes() == client.key.read_bytes() + client.certificate.read_bytes()


@pytest.mark.parametrize(("other_ca", "password"), [(False, None), (True, "of the key")])
def test_pkcs12_store_has_the_key_and_both_certificates(keys, other_ca, password):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import pkcs12

    client = keys.client("alice", other_ca=other_ca, password=password)
    store = pkcs12.load_pkcs12(keys.pkcs12(client, "of the store").read_bytes(), b"of the store")
    assert store.cert.certificate == x509.load_pem_x509_certificate(client.certificate.read_bytes())
    assert store.key.public_key() == store.cert.certificate.public_key()
    ca = keys.other_ca if other_ca else keys.ca
    assert [each.certificate for each in store.additional_certs] == [x509.load_pem_x509_certificate(ca.read_bytes())]


@pytest.mark.parametrize("wrong", ["", "../alice", "a b", "a,O=b", ".hidden"])
def test_name_that_is_no_file_name_is_refused(keys, wrong):
    with pytest.raises(ValueError, match="use letters, digits"):
        keys.client(wrong)


@pytest.mark.parametrize("library", ["trustme", "cryptography"])
def test_missing_library_is_explained(tmp_path, library):
    source = f"""
import sys
sys.modules[{library!r}] = None
from devkafka.keys import Keys
import devkafka.node
Keys(sys.argv[1])
"""
    run = run_script(source, tmp_path / "keys", check=False)
    assert MissingLibraryError.__name__ in run.stderr
    assert "pip install 'cyproducer[dev-tls]'" in run.stderr
    assert not (tmp_path / "keys").exists()
