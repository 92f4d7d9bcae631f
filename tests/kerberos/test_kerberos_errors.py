"""Tests that each failure of Kerberos says what failed, against which broker, why, and what to do."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kdc import REALM
from support.process import wait_until
from support.supervised import the_sender

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import spawn

Make = Callable[..., KafkaProducer]


@pytest.fixture
def refused(realm, make_producer: Make) -> Callable[..., str]:
    """Return ``refused(**settings)``: why a producer with these settings cannot send, in the words of its error."""

    def why(**settings: object) -> str:
        producer = make_producer(**settings | {"max_block_ms": 4000})
        with pytest.raises(errors.KafkaError) as caught:
            producer.send("any", b"never").result(30)
        assert f"broker {realm.kafka.bootstrap('SASL_PLAINTEXT')}: " in str(caught.value)
        return str(caught.value)

    return why


def test_no_ticket(realm, refused):
    text = refused(**realm.settings())
    cache = f"FILE:{realm.kdc.directory}/no-ticket"
    assert f"; check the ticket in {cache} (klist), or get one with kinit, or set sasl_kerberos_keytab and" in text


def test_an_expired_ticket(realm, refused, monkeypatch):
    monkeypatch.setenv("KRB5CCNAME", realm.kdc.tickets(realm.keytab, "alice", life="1s", name="expired"))
    ends = time.monotonic() + 2
    wait_until(lambda: time.monotonic() > ends, 30, "the end of the ticket")
    assert ": Ticket expired; check the ticket in FILE:" in refused(**realm.settings())


def test_a_ticket_of_another_client(realm, refused, monkeypatch):
    monkeypatch.setenv("KRB5CCNAME", realm.kdc.tickets(realm.keytab, "alice", name="of-alice"))
    text = refused(**realm.settings(sasl_kerberos_principal="bob"))
    assert "and the client bob: Principal in credential cache does not match desired name; check the ticket in" in text


def test_a_cache_that_is_no_cache(realm, refused, tmp_path):
    path = tmp_path / "cache"
    path.write_text("no cache")
    text = refused(**realm.settings(sasl_kerberos_ticket_cache=str(path)))
    assert f"credentials cache format version number (filename: {path})" in text


def test_a_keytab_of_another_principal(realm, refused):
    text = refused(**realm.with_keytab(sasl_kerberos_principal=f"bob@{REALM}"))
    assert f"the keytab {realm.keytab} cannot be read, or has no key of bob@{REALM}; check the keytab and" in text


@pytest.mark.parametrize("preauthentication", [False, True])
def test_a_keytab_with_a_former_key(realm, refused, tmp_path, preauthentication):
    name = f"former-{preauthentication}".lower()
    realm.kdc.add(name, preauthentication=preauthentication)
    former = tmp_path / "keytab"
    former.write_bytes(realm.kdc.keytab(name).read_bytes())
    realm.kdc.keytab(name)
    text = refused(**realm.with_keytab(sasl_kerberos_principal=name, sasl_kerberos_keytab=str(former)))
    assert ("Preauthentication failed" if preauthentication else "Decrypt integrity check failed") in text
    assert f"check the keytab and sasl_kerberos_principal (klist -k {former})" in text


def test_a_principal_that_was_removed(realm, refused, tmp_path):
    realm.kdc.add("removed")
    keytab = realm.kdc.keytab("removed")
    realm.kdc.remove("removed")
    text = refused(**realm.with_keytab(sasl_kerberos_principal="removed", sasl_kerberos_keytab=str(keytab)))
    assert f"Client 'removed@{REALM}' not found in Kerberos database" in text


def test_a_wrong_service_name(realm, refused):
    text = refused(**realm.with_keytab(sasl_kerberos_service_name="events"))
    assert f"Server events/localhost@{REALM} not found in Kerberos database" in text
    assert "; then sasl_kerberos_service_name, the name of the broker's host" in text


def test_a_wrong_domain_name(realm, refused):
    text = refused(**realm.with_keytab(sasl_kerberos_domain_name="other.localhost"))
    assert f"Server kafka/other.localhost@{REALM} not found in Kerberos database" in text


def test_a_service_whose_key_the_broker_does_not_have(realm, refused):
    """The KDC knows the service, so only the broker can refuse the ticket. It says little about the reason."""
    realm.kdc.add("impostor/localhost")
    text = refused(**realm.with_keytab(sasl_kerberos_service_name="impostor"))
    assert "the broker refuses the credentials (GSSAPI)" in text
    assert "compare the broker's clock and keytab with those of the KDC" in text


def test_a_kdc_that_does_not_run(realm, refused):
    realm.kdc.stop()
    text = refused(**realm.with_keytab())
    assert f"Cannot contact any KDC for realm '{REALM}'" in text
    assert f"the KDC, {realm.kdc.config}, and the clocks" in text


def test_a_kdc_that_does_not_answer(realm, refused):
    """The library of Kerberos waits for longer than a connection may take."""
    realm.kdc.pause()
    text = refused(**realm.with_keytab(socket_connection_setup_timeout_ms=1000))
    assert "SASL (GSSAPI) did not end within" in text
    assert "the KDC" in text


def test_the_clock_of_the_kdc_is_wrong(realm, refused):
    realm.kdc.stop()
    realm.kdc.start(ahead_s=3600)
    config = realm.kdc.config_for("no-timesync.conf", more=" kdc_timesync = 0\n")
    text = refused(**realm.with_keytab(sasl_kerberos_config=str(config)))
    assert "Clock skew too great in KDC reply" in text


def test_the_clock_of_the_broker_is_not_that_of_the_kdc(realm, refused):
    """The client takes the time of the KDC over, as Kerberos does by default. So only the broker notices it."""
    realm.kdc.stop()
    realm.kdc.start(ahead_s=3600)
    text = refused(**realm.with_keytab())
    assert "the broker refuses the credentials (GSSAPI)" in text
    assert "compare the broker's clock and keytab with those of the KDC" in text


def test_a_configuration_that_is_none(realm, refused, tmp_path):
    config = tmp_path / "krb5.conf"
    config.write_text("[libdefaults\n x = {")
    text = refused(**realm.with_keytab(sasl_kerberos_config=str(config)))
    assert "Improper format of Kerberos configuration file" in text
    assert f"the KDC, {config}, and the clocks" in text


def test_the_package_is_missing(realm, refused, monkeypatch, tmp_path):
    (tmp_path / "gssapi.py").write_text("raise ImportError('there is no such package')")
    paths = spawn._paths
    monkeypatch.setattr(spawn, "_paths", lambda *given: [str(tmp_path), *paths(*given)])
    text = refused(**realm.with_keytab())
    assert "pip install 'cyproducer[kerberos]'" in text


def test_failures_are_not_repeated_in_a_tight_loop(realm, make_producer):
    """Each attempt asks the KDC. The pause between two of them grows."""
    before = realm.kdc.requests()
    producer = make_producer(**realm.with_keytab(sasl_kerberos_service_name="events", max_block_ms=6000))
    with pytest.raises(errors.KafkaError):
        producer.send("any", b"never").result(30)
    assert 2 <= realm.kdc.requests() - before < 60
    assert Path(the_sender()["log"]).read_text().count("Server events/localhost") <= 2
