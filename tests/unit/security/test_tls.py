"""Tests the contexts that the settings ``ssl_*`` make, by handshakes with a server in the same process."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, load_pem_private_key, pkcs12
from devkafka.keys import Identity, Keys
from support.revocations import revocations

from cyproducer.config.settings import Settings
from cyproducer.security.tls import TlsContexts, TlsError
from cyproducer.security.tls_errors import describe_tls_error

HOST = "localhost"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def client(keys: Keys) -> Identity:
    return keys.client("somebody")


@pytest.fixture(scope="module")
def locked(keys: Keys) -> Identity:
    return keys.client("locked", password="of the key")


Server = Callable[..., ssl.SSLContext]


@pytest.fixture
def server(keys: Keys) -> Server:
    """Return a function that makes the context of a server with a certificate; by default that of the broker."""

    def make(identity: Identity | None = None, ask: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain((identity or keys.broker).keystore)
        if ask:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(keys.ca)
        return context

    return make


def shake(ours: ssl.SSLContext, theirs: ssl.SSLContext, host: str = HOST) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Make a handshake in memory, and return both ends. Raise the first error of one of them."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_client, to_server, server_hostname=host)
    peer = theirs.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, peer]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
        if not waiting:
            return client, peer
    raise AssertionError("the handshake does not end")


def refusal(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> str:
    """Return what is said of a certificate that the handshake refuses."""
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake(ours, theirs)
    return describe_tls_error(caught.value)


def common_name(end: ssl.SSLObject) -> str:
    certificate: Any = end.getpeercert()
    return next(value for part in certificate["subject"] for name, value in part if name == "commonName")


def trusting(keys: Keys, **more: Any) -> ssl.SSLContext:
    return TlsContexts({"ssl_cafile": str(keys.ca), **more}).context()


# ---------------------------------------------------------------- whom to trust


def authorities(keys: Keys, kind: str) -> dict[str, Any]:
    if kind == "file":
        return {"ssl_cafile": str(keys.ca)}
    if kind == "text":
        return {"ssl_cadata": keys.ca.read_text()}
    store = keys.pkcs12(keys.client("in-a-store"), "of the store")
    return {
        "ssl_truststore_location": str(store),
        "ssl_truststore_type": "PKCS12",
        "ssl_truststore_password": "of the store",
    }


@pytest.mark.parametrize("kind", ["file", "text", "store"])
def test_the_authority_of_the_broker_is_trusted(keys: Keys, server: Server, kind: str) -> None:
    context = TlsContexts(authorities(keys, kind)).context()
    assert shake(context, server())[0].version() == "TLSv1.3"
    foreign = server(keys.server("foreign", other_ca=True))
    assert "give the certificate of the broker's authority as ssl_cafile" in refusal(context, foreign)


def test_without_settings_the_system_is_trusted(server: Server) -> None:
    context = TlsContexts({}).context()
    assert context.cert_store_stats() == ssl.create_default_context().cert_store_stats()
    refusal(context, server())


def test_the_authorities_of_the_settings_replace_those_of_the_system(
    keys: Keys, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(keys.ca))
    shake(TlsContexts({}).context(), server())
    refusal(TlsContexts({"ssl_cafile": str(keys.other_ca)}).context(), server())


def test_a_certificate_for_another_host(keys: Keys, server: Server) -> None:
    elsewhere = server(keys.server("elsewhere", "elsewhere.invalid"))
    assert "certificate is not valid for 'localhost'; use a name of the certificate in" in refusal(
        trusting(keys), elsewhere
    )
    shake(trusting(keys, ssl_check_hostname=False), elsewhere)


def test_an_expired_certificate(keys: Keys, server: Server) -> None:
    text = refusal(trusting(keys), server(keys.server("old", expired=True)))
    assert "has expired" in text and "clock" in text


def test_a_revoked_certificate(keys: Keys, server: Server, tmp_path: Path) -> None:
    identity = keys.server("revoked")
    context = trusting(keys, ssl_crlfile=str(revocations(keys, tmp_path / "crl.pem", identity)))
    shake(context, server())
    assert "certificate revoked; replace the certificate" in refusal(context, server(identity))


def test_a_revocation_list_that_has_expired(keys: Keys, server: Server, tmp_path: Path) -> None:
    path = revocations(keys, tmp_path / "crl.pem", keys.server("revoked"), expired=True)
    text = refusal(trusting(keys, ssl_crlfile=str(path)), server())
    assert "CRL has expired; renew it, or correct this host's clock" in text


def test_an_intermediate_authority_is_trusted_without_its_root(keys: Keys, server: Server) -> None:
    """The broker's own certificate stands for one: it is signed by another one, too."""
    context = TlsContexts({"ssl_cafile": str(keys.broker.certificate)}).context()
    shake(context, server())
    refusal(context, server(keys.server("elsewhere")))


def test_a_truststore_without_an_authority_is_refused(tmp_path: Path, client: Identity) -> None:
    """Otherwise the system's authorities would be trusted, which the user has not asked for."""
    key: Any = load_pem_private_key(client.key.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate(client.certificate.read_bytes())
    store = tmp_path / "key.p12"
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"own", key, certificate, None, NoEncryption()))
    settings = {"ssl_truststore_location": str(store), "ssl_truststore_type": "PKCS12"}
    with pytest.raises(
        TlsError, match=rf"^ssl_truststore_location={store}: it has no certificate of an authority; add"
    ):
        TlsContexts(settings).context()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ssl_cafile": "/nowhere"}, "ssl_cafile=/nowhere: No such file or directory"),
        ({"ssl_crlfile": "/nowhere"}, "ssl_crlfile=/nowhere: No such file or directory"),
        ({"ssl_cadata": "no certificate"}, "ssl_cadata=its certificates: it cannot be used"),
        ({"ssl_certfile": "/nowhere"}, "ssl_certfile=/nowhere: No such file or directory"),
        ({"ssl_keystore_location": "/nowhere", "ssl_keystore_type": "PKCS12"}, "No such file or directory"),
        ({"ssl_ciphers": "no-such-cipher"}, "OpenSSL knows none of these ciphers"),
    ],
)
def test_what_cannot_be_used_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TlsError, match=text):
        TlsContexts(settings).context()


# ---------------------------------------------------------------- the certificate of the client


def test_the_client_is_known_by_its_certificate(keys: Keys, server: Server, client: Identity, locked: Identity) -> None:
    store = keys.pkcs12(client, "of the store")
    for given, name in (
        ({"ssl_certfile": str(client.keystore)}, "somebody"),
        ({"ssl_certfile": str(client.certificate), "ssl_keyfile": str(client.key)}, "somebody"),
        ({"ssl_certdata": client.certificate.read_text(), "ssl_keydata": client.key.read_text()}, "somebody"),
        (
            {"ssl_certfile": str(locked.certificate), "ssl_keyfile": str(locked.key), "ssl_password": "of the key"},
            "locked",
        ),
        (
            {
                "ssl_keystore_location": str(store),
                "ssl_keystore_type": "PKCS12",
                "ssl_keystore_password": "of the store",
            },
            "somebody",
        ),
    ):
        assert common_name(shake(trusting(keys, **given), server(ask=True))[1]) == name


def test_a_key_without_its_password(keys: Keys, locked: Identity) -> None:
    given = {"ssl_certfile": str(locked.certificate), "ssl_keyfile": str(locked.key)}
    with pytest.raises(TlsError, match="the private key is encrypted; give its password as ssl_password"):
        trusting(keys, **given)
    with pytest.raises(TlsError, match="ssl_password is wrong") as caught:
        trusting(keys, **given, ssl_password="marked-wrong")
    assert "marked-wrong" not in str(caught.value)


def test_a_key_of_another_certificate(keys: Keys, client: Identity, locked: Identity) -> None:
    other = keys.client("other")
    with pytest.raises(TlsError, match="the private key does not belong to the certificate"):
        trusting(keys, ssl_certfile=str(client.certificate), ssl_keyfile=str(other.key))


def test_a_wrong_password_of_a_store(keys: Keys, client: Identity) -> None:
    store = keys.pkcs12(client, "of the store")
    with pytest.raises(TlsError, match="ssl_keystore_password is wrong") as caught:
        trusting(
            keys,
            ssl_keystore_location=str(store),
            ssl_keystore_type="PKCS12",
            ssl_keystore_password="marked-wrong",
        )
    assert "marked-wrong" not in str(caught.value)


def test_no_certificate_where_the_broker_wants_one(keys: Keys, server: Server) -> None:
    """With TLS 1.2 the handshake fails; with TLS 1.3 the client learns it with its first read."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(keys).wrap_bio(to_client, to_server, server_hostname=HOST)
    peer = server(ask=True).wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        peer.do_handshake()
    client.do_handshake()
    with pytest.raises(ssl.SSLError):
        peer.do_handshake()
    with pytest.raises(ssl.SSLError) as caught:
        client.read()
    assert "the broker wants a client certificate" in describe_tls_error(caught.value)


# ---------------------------------------------------------------- versions and ciphers


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_only_the_enabled_versions_are_used(keys: Keys, server: Server, version: str) -> None:
    context = trusting(keys, ssl_enabled_protocols=[version])
    assert shake(context, server())[0].version() == version
    other = server()
    if version == "TLSv1.2":
        other.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        other.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(context, other)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_kafkas_newest_version_is_the_newest_one(keys: Keys, server: Server, version: str) -> None:
    given = {"bootstrap_servers": "h", "security_protocol": "SSL", "ssl_cafile": str(keys.ca)}
    settings = Settings.parse(**given, ssl_protocol=version)
    assert shake(TlsContexts(settings.sender_settings()).context(), server())[0].version() == version


@pytest.mark.parametrize(
    "ciphers", ["aNULL:@SECLEVEL=0", "ALL:@SECLEVEL=0", "eNULL:@SECLEVEL=0", "ALL:eNULL:@SECLEVEL=0"]
)
def test_a_server_without_a_certificate_or_without_encryption_is_refused(keys: Keys, ciphers: str) -> None:
    """Settings with such ciphers are refused before. Here they come from another process."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.maximum_version = ssl.TLSVersion.TLSv1_2
    theirs.set_ciphers("aNULL:eNULL:@SECLEVEL=0")
    with pytest.raises((TlsError, ssl.SSLError)):
        shake(trusting(keys, ssl_ciphers=ciphers), theirs)


def test_only_the_given_ciphers_are_used(keys: Keys, server: Server) -> None:
    """One is given that would not be chosen otherwise."""
    _, peer = shake(trusting(keys, ssl_enabled_protocols=["TLSv1.2"]), server())
    usual = peer.cipher()
    assert usual is not None
    names = [cipher["name"] for cipher in server().get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    other = next(name for name in names if usual[0].split("-")[:2] == name.split("-")[:2] and name != usual[0])
    chosen = shake(trusting(keys, ssl_ciphers=other, ssl_enabled_protocols=["TLSv1.2"]), server())[0].cipher()
    assert chosen is not None
    assert chosen[0] == other


# ---------------------------------------------------------------- files that change


@pytest.fixture
def renewed(keys: Keys, client: Identity, tmp_path: Path) -> tuple[TlsContexts, Path]:
    store = tmp_path / "store.pem"
    store.write_bytes(client.keystore.read_bytes())
    return TlsContexts({"ssl_cafile": str(keys.ca), "ssl_certfile": str(store)}), store


def test_files_that_have_changed_are_read_again(
    keys: Keys, server: Server, renewed: tuple[TlsContexts, Path], tmp_path: Path
) -> None:
    contexts, store = renewed
    first = contexts.context()
    assert contexts.context() is first
    (tmp_path / "new").write_bytes(keys.client("renewed").keystore.read_bytes())
    os.replace(tmp_path / "new", store)
    assert contexts.context() is not first
    assert common_name(shake(contexts.context(), server(ask=True))[1]) == "renewed"


def test_the_systems_authorities_are_read_again(
    keys: Keys, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system.pem"
    system.write_bytes(keys.other_ca.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(system))
    contexts = TlsContexts({})
    first = contexts.context()
    refusal(first, server())
    assert contexts.context() is first
    (tmp_path / "new").write_bytes(keys.ca.read_bytes())
    os.replace(tmp_path / "new", system)
    shake(contexts.context(), server())


def test_the_former_context_stays_while_the_files_do_not_fit(server: Server, renewed: tuple[TlsContexts, Path]) -> None:
    contexts, store = renewed
    first, content = contexts.context(), store.read_bytes()
    store.write_bytes(content[: len(content) // 2])
    assert contexts.context() is first
    assert str(store) in contexts.problem or "ssl_certfile" in contexts.problem
    store.write_bytes(content)
    assert contexts.context() is not first
    assert contexts.problem == ""
    assert common_name(shake(contexts.context(), server(ask=True))[1]) == "somebody"


def test_repr_shows_nothing() -> None:
    assert repr(TlsContexts({"ssl_password": "marked-secret"})) == "TlsContexts()"
