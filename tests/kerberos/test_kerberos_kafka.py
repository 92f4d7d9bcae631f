"""Tests a producer that authenticates with Kerberos, against a real KDC and a real Kafka."""

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kdc import REALM
from support.process import all_pids, kill9, proc_file, users_of, wait_until
from support.supervised import pair, the_sender, trouble

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status

Make = Callable[..., KafkaProducer]


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_with_a_keytab(realm, make_producer, listener):
    topic = realm.kafka.topic_for("User:alice")
    producer = make_producer(**realm.with_keytab(listener))
    assert [producer.send(topic, b"%d" % n).result(30).offset for n in range(3)] == [0, 1, 2]
    assert realm.kafka.read(topic, 3).value == [b"0", b"1", b"2"]


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_with_a_ticket(realm, make_producer, monkeypatch, listener):
    """The application's KRB5CCNAME counts, as with other clients."""
    monkeypatch.setenv("KRB5CCNAME", realm.kdc.tickets(realm.keytab, f"alice@{REALM}"))
    topic = realm.kafka.topic_for("User:alice")
    producer = make_producer(**realm.settings(listener))
    assert producer.send(topic, b"by ticket").result(30).offset == 0
    assert realm.kafka.read(topic, 1).value == [b"by ticket"]


def test_jaas(realm, make_producer):
    """A configuration of Kafka's Java client is taken as it is."""
    module = "com.sun.security.auth.module.Krb5LoginModule"
    options = f'useKeyTab=true storeKey=true keyTab="{realm.keytab}" principal="alice@{REALM}"'
    given = {"sasl.jaas.config": f"{module} required {options};", "sasl.kerberos.service.name": "kafka"}
    producer = make_producer(**realm.settings(**given))
    assert producer.send(realm.kafka.topic_for("User:alice"), b"x").result(30).offset == 0


def test_the_names_of_librdkafka(realm, make_producer):
    given = {"sasl.kerberos.keytab": str(realm.keytab), "sasl.kerberos.principal": f"alice@{REALM}"}
    producer = make_producer(**realm.settings(**given))
    assert producer.send(realm.kafka.topic_for("User:alice"), b"x").result(30).offset == 0


def test_the_environment_of_the_application_counts(realm, make_producer, monkeypatch, runtime_dir):
    """Producers with different configurations or tickets have different senders. Each sender uses its own."""
    first = make_producer(**realm.with_keytab())
    topic = realm.kafka.topic_for("User:alice")
    first.send(topic, b"1").result(30)
    monkeypatch.setenv("KRB5_CONFIG", str(realm.kdc.config_for("unreachable.conf", port=9)))
    second = make_producer(**realm.with_keytab(max_block_ms=4000))
    with pytest.raises(errors.KafkaError, match="Cannot contact any KDC for realm"):
        second.send(topic, b"never").result(30)
    assert first.send(topic, b"2").result(30).offset == 1
    assert len({sender["sender_pid"] for sender in status()}) == 2


def test_the_order_stays_while_sessions_and_tickets_end(realm, make_producer, runtime_dir):
    """A session lasts 2.5 s, and a ticket 4 s. No record waits for another connection (KIP-368)."""
    realm.kdc.add("short", life="4 seconds")
    keytab = realm.kdc.keytab("short")
    topic = realm.kafka.topic_for("User:short")
    given = {"sasl_kerberos_principal": "short", "sasl_kerberos_keytab": str(keytab), "linger_ms": 1}
    producer = make_producer(**realm.with_keytab("SASL_SSL", **given))
    tickets = realm.kdc.requests("AS_REQ")
    futures = []
    until = time.monotonic() + 12
    while time.monotonic() < until:
        futures.append(producer.send(topic, b"%d" % len(futures)))
        time.sleep(0.001)
    assert [future.result(30).offset for future in futures] == list(range(len(futures)))
    assert realm.kafka.read(topic, len(futures)).value == [b"%d" % n for n in range(len(futures))]
    log = Path(the_sender()["log"]).read_text()
    assert log.count("connected to broker") == 1, log
    assert trouble(log) == []
    assert realm.kdc.requests("AS_REQ") - tickets >= 3


def test_a_ticket_that_is_replaced(realm, make_producer, monkeypatch, runtime_dir):
    """The sender reads the cache for each authentication, so a kinit of the user or of k5start is enough."""
    cache = realm.kdc.tickets(realm.keytab, f"alice@{REALM}", life="4s", name="replaced")
    monkeypatch.setenv("KRB5CCNAME", cache)
    topic = realm.kafka.topic_for("User:alice")
    producer = make_producer(**realm.settings())
    sent = 0
    until = time.monotonic() + 9
    while time.monotonic() < until:
        assert producer.send(topic, b"x").result(30).offset == sent
        sent += 1
        if sent % 20 == 0:
            realm.kdc.tickets(realm.keytab, f"alice@{REALM}", life="4s", name="replaced")
        time.sleep(0.05)
    assert trouble(Path(the_sender()["log"]).read_text()) == []


def test_the_kdc_is_away_while_the_session_lasts(realm, make_producer, runtime_dir):
    """The connection is used on. Later ones need the KDC, and get it again."""
    topic = realm.kafka.topic_for("User:alice")
    producer = make_producer(**realm.with_keytab())
    producer.send(topic, b"0").result(30)
    realm.kdc.stop()
    ends = time.monotonic() + 4  # with the ticket for the broker, no KDC is needed for another session
    offsets = []
    while time.monotonic() < ends:
        offsets.append(producer.send(topic, b"x").result(30).offset)
        time.sleep(0.05)
    assert offsets == list(range(1, len(offsets) + 1))
    realm.kdc.start()
    assert producer.send(topic, b"x").result(30).offset == len(offsets) + 1


def test_a_successor_has_the_credentials(realm, make_producer, runtime_dir):
    topic = realm.kafka.topic_for("User:alice")
    producer = make_producer(**realm.with_keytab("SASL_SSL"))
    sent = [producer.send(topic, b"before").result(30).offset]
    for victim in ("sender_pid", "supervisor_pid"):
        former = wait_until(pair, 30, "a sender and its supervisor")
        kill9(the_sender()[victim])
        wait_until(lambda former=former: (now := pair()) and now != former, 30, "a successor")
        sent.append(producer.send(topic, b"after").result(30).offset)
    assert sent == [0, 1, 2]


def test_no_key_and_no_ticket_is_shown(realm, make_producer, monkeypatch, runtime_dir, caplog):
    """Neither the key of the keytab nor the keys of a ticket are in what the processes write, print, or can be asked.

    The key is in the keytab as it is. A ticket of a file has its session key there.
    """
    cache = realm.kdc.tickets(realm.keytab, f"alice@{REALM}", name="marked")
    topic = realm.kafka.topic_for("User:alice")
    monkeypatch.setenv("CYPRODUCER_LOG", "DEBUG")
    producers = [
        make_producer(**realm.with_keytab()),
        make_producer(**realm.settings(sasl_kerberos_ticket_cache=cache)),
        make_producer(**realm.with_keytab(sasl_kerberos_service_name="events", max_block_ms=2000)),
    ]
    for producer in producers[:2]:
        producer.send(topic, b"x").result(30)
    with pytest.raises(errors.KafkaError) as refused:
        producers[2].send(topic, b"x").result(30)
    key = realm.keytab.read_bytes()[-36:-4]  # 32 bytes of an aes256 key, before the number of its version
    ticket = Path(cache.removeprefix("FILE:")).read_bytes()[-64:]
    secrets = [part for whole in (key, ticket) for part in (whole, whole.hex().encode(), base64.b64encode(whole))]
    shown = [str(refused.value), repr(producers), json.dumps(status()), caplog.text]
    written = [text.encode() for text in shown]
    written += [path.read_bytes() for path in runtime_dir.rglob("*") if path.is_file()]
    for process in users_of(runtime_dir, all_pids()):
        written += [" ".join(process.cmdline()).encode(), proc_file(process.pid, "environ")]
    assert len(written) > 8
    assert not [secret for secret in secrets for text in written if secret in text]
    assert any(b"connected to broker" in text for text in written)


def test_a_missing_ticket_fails_at_once(realm, make_producer, tmp_path):
    """Without waiting for max_block_ms: somebody has to run kinit."""
    settings = {**realm.settings(), "sasl_kerberos_ticket_cache": str(tmp_path / "none"), "max_block_ms": 3_600_000}
    with pytest.raises(errors.AuthenticationFailedError, match=r"check the ticket in .*/none \(klist\), or get one"):
        make_producer(**settings).send("any", b"never")


def test_the_canonical_name_of_a_bootstrap_server_is_in_the_principal(realm, make_producer):
    """The KDC has no service kafka/127.0.0.1. The canonical name of that address is localhost."""
    address = realm.kafka.bootstrap("SASL_SSL").replace("localhost", "127.0.0.1")
    topic = realm.kafka.topic_for("User:alice")
    given = realm.with_keytab("SASL_SSL", bootstrap_servers=address)
    refused = make_producer(**given | {"max_block_ms": 4000})
    with pytest.raises(errors.KafkaError, match=r"Server kafka/127\.0\.0\.1@.* not found in Kerberos database"):
        refused.send(topic, b"never").result(30)
    producer = make_producer(**given, client_dns_lookup="resolve_canonical_bootstrap_servers_only")
    assert producer.send(topic, b"x").result(30).offset == 0
