"""Tests that secrets decide which sender serves a process, and that no secret is shown anywhere."""

import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from devkafka.node import Rule
from support.process import cyproducer, proc_file, run_script, start_script
from support.proxy import running_proxy
from support.recorded import recorded_locals
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor

from cyproducer import KafkaProducer, errors
from cyproducer.config.settings import Settings as Parsed
from cyproducer.config.table import SETTINGS
from cyproducer.host import control_messages, credentials
from cyproducer.observe.status import status
from cyproducer.producer.channel.address import Address
from cyproducer.producer.channel.attach import AttachProgress, attach
from cyproducer.shm.native import LAYOUT_VERSION

Make = Callable[..., KafkaProducer]
MARK = "marked-secret-7f3a"
MODULES = "org.apache.kafka.common.security"


def test_the_same_secrets_share_a_sender_and_others_do_not(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    topic = secure_kafka.topic_for("User:alice")
    right = settings_for("SASL_SSL", "SCRAM-SHA-256")
    first, second = make_producer(**right), make_producer(**right)
    for producer in (first, second):
        producer.send(topic, b"mine").result(30)
    assert len(status()) == 1
    other = make_producer(**right | {"sasl_plain_password": MARK, "max_block_ms": 30_000})
    with pytest.raises(errors.KafkaError, match="refuses the credentials"):
        other.send(topic, b"not mine").result(10)
    assert len(status()) == 2
    assert sorted(len(each["front_ends"]) for each in status()) == [1, 2]
    first.send(topic, b"still mine").result(30)


def test_a_process_that_does_not_know_the_password_is_not_attached(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    """It connects to the socket of the sender, whose name it can see. It is not told either which user that has."""
    settings = settings_for("SASL_SSL", "PLAIN")
    producer = make_producer(**settings)
    producer.send(secure_kafka.topic_for("User:alice"), b"0").result(30)
    [running] = status()
    for wrong, user in ((MARK, "alice"), (None, "alice"), (MARK, "mallory"), (None, "mallory")):
        given = {"sasl_plain_username": user, "sasl_plain_password": wrong or "any"}
        parsed = Parsed.parse(**settings | given)
        address = Address(parsed)
        address._secrets = {} if wrong is None else address._secrets
        with pytest.raises(errors.SenderUnavailableError, match="CREDENTIALS") as refused:
            attach(parsed, address, running["socket"], 1e12, AttachProgress())
        assert "alice" not in str(refused.value)
    assert len(status()[0]["front_ends"]) == 1


def test_a_process_that_cannot_read_the_private_key_is_not_attached(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    own = secure_kafka.keys.client("of-a-file")
    settings = settings_for("MTLS", ssl_certfile=str(own.certificate), ssl_keyfile=str(own.key))
    topic = secure_kafka.topic_for(f"User:CN={own.name}")
    make_producer(**settings).send(topic, b"0").result(30)
    [running] = status()
    with pytest.raises(errors.KafkaConfigurationError, match="the file with credentials of ssl_keyfile"):
        make_producer(sender=running["socket"]).partitions_for(topic)
    own.key.write_bytes(own.key.read_bytes() + b"\n")  # it is replaced while the sender runs
    make_producer(**settings).send(topic, b"1").result(30)
    assert len(status()) == 1
    parsed = Parsed.parse(**settings)
    address = Address(parsed)
    address._expected["ssl_keyfile"] = str(own.certificate)
    with pytest.raises(errors.SenderUnavailableError, match="had another content"):
        attach(parsed, address, running["socket"], 1e12, AttachProgress())


def test_a_process_that_has_seen_a_proof_cannot_use_it(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, short_tmp: Path
) -> None:
    """It has listened in the place of the sender, and passes the whole message on, with the arena."""
    settings = settings_for("SASL_SSL", "PLAIN", sender_idle_timeout_ms=1000)
    make_producer(**settings).partitions_for(secure_kafka.topic_for("User:alice"))
    [running] = status()
    path = short_tmp / "false.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        with start_script(ATTACH, path, json.dumps(settings)):
            listener.settimeout(30)
            connection, _ = listener.accept()
            question, _ = control_messages.receive(connection)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(20)
                sock.connect(running["socket"])
                control_messages.send(sock, question)
                challenge, _ = control_messages.receive(sock)
                control_messages.send(connection, challenge)
                message, fds = control_messages.receive(connection)
                assert message is not None and len(message["proof"]) == 64
                own = os.pidfd_open(os.getpid())
                control_messages.send(sock, message, [fds[0], own, fds[2]])
                answer, _ = control_messages.receive(sock)
            connection.close()
    for fd in (*fds, own):
        os.close(fd)
    path.unlink()
    assert answer is not None
    assert answer["error"] == "CREDENTIALS"


ATTACH = """
    import json, sys
    from cyproducer.config.settings import Settings
    from cyproducer.producer.channel.attach import AttachProgress, attach
    from cyproducer.producer.channel.address import Address
    settings = Settings.parse(**json.loads(sys.argv[2]))
    attach(settings, Address(settings), sys.argv[1], 1e12, AttachProgress())
"""


def holders(runtime_dir: Path) -> list[psutil.Process]:
    """Return the processes of the senders in a runtime directory, helpers included."""
    pids = {each[name] for each in status() for name in ("sender_pid", "supervisor_pid")}
    found = [psutil.Process(pid) for pid in pids]
    return found + [child for process in found for child in process.children(recursive=True)]


TOKENS: list[str] = []


def show_tokens(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> list[str]:
    """Use, refuse and lose tokens of providers, which TOKENS gets. Return what the producers show of them."""

    def provide(foreign: bool = False) -> str:
        TOKENS.append(secure_kafka.tokens.token("marked-provider", expires_in=3, foreign=foreign))
        return TOKENS[-1]

    def fail() -> str:
        raise ValueError(MARK)

    shown = []
    for provider in (provide, lambda: provide(True), fail, lambda: (TOKENS[0], MARK)):
        settings = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", max_block_ms=4000)
        producer = make_producer(**settings, sasl_oauth_token_provider=provider)
        shown += [repr(producer), repr(Parsed.parse(**settings, sasl_oauth_token_provider=provider))]
        with pytest.raises(errors.KafkaError) as caught:
            producer.send("unknown", b"never").result(10)
        shown += [repr(caught.value), str(caught.value), caught.getrepr(style="long", showlocals=False).__str__()]
        shown += recorded_locals(caught.value)
    return shown


@pytest.fixture
def proxy_urls(tmp_path: Path) -> Iterator[list[str]]:
    """Yield the addresses of proxies that demand another password."""
    with (
        running_proxy("socks5", tmp_path, "u:correct") as socks,
        running_proxy("http", tmp_path, "u:correct") as http,
    ):
        yield [socks.url, http.url]


def marked_settings(
    secure_kafka: SecureKafka, settings_for: SettingsFor, proxy_urls: list[str]
) -> list[dict[str, Any]]:
    """Return settings of producers, in which each secret is MARK or contains it; a private key is that of `marked`."""
    keys = secure_kafka.keys
    identity = keys.client("marked", password=MARK)
    files = {"ssl_certfile": str(identity.certificate), "ssl_keyfile": str(identity.key)}
    texts = {"ssl_certdata": identity.certificate.read_text(), "ssl_keydata": identity.key.read_text()}
    store = str(keys.pkcs12(keys.client("marked-store"), MARK))
    trust = settings_for("MTLS", ssl_truststore_location=store, ssl_truststore_password=MARK)
    del trust["ssl_cafile"]
    login = f'{MODULES}.plain.PlainLoginModule required username="alice" password="{MARK}";'
    return [
        settings_for("SASL_SSL", "PLAIN", sasl_plain_password=MARK),
        settings_for("SASL_SSL", "SCRAM-SHA-512", sasl_plain_password=MARK),
        settings_for("SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=login),
        settings_for("SASL_SSL", "OAUTHBEARER", sasl_oauthbearer_client_credentials_client_secret=MARK),
        settings_for("MTLS", **files, ssl_password=MARK),
        settings_for("MTLS", **texts, ssl_password=MARK),
        settings_for("MTLS", ssl_keystore_location=store, ssl_keystore_password=MARK),
        trust,
        *(settings_for("SSL", proxy_url=url, proxy_username="u", proxy_password=MARK) for url in proxy_urls),
    ]


def test_no_secret_is_shown(
    secure_kafka: SecureKafka,
    make_producer: Make,
    settings_for: SettingsFor,
    runtime_dir: Path,
    proxy_urls: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Marked secrets are in no name, argument, environment, log, status, repr, error or file.

    Each setting that is a secret is marked in at least one producer with a sender of its own.
    """
    cases = marked_settings(secure_kafka, settings_for, proxy_urls)
    key = next(each["ssl_keydata"] for each in cases if "ssl_keydata" in each)
    marked = {name for each in cases for name, value in each.items() if MARK in str(value) or value == key}
    assert marked == {setting.name for setting in SETTINGS if setting.secret}
    shown = []
    for settings in cases:
        producer = make_producer(**settings)
        shown += [repr(producer), str(producer), repr(Parsed.parse(**settings))]
        with pytest.raises(errors.KafkaError) as caught:
            producer.send("unknown", b"never").result(10)
        shown += [repr(caught.value), str(caught.value), caught.getrepr(style="long", showlocals=False).__str__()]
        shown += recorded_locals(caught.value)
    # PLAIN with sasl_plain_password and with sasl_jaas_config are the same settings.
    assert len(status()) == len(cases) - 1
    shown += wrong_passwords_of_files(secure_kafka, make_producer, settings_for)
    shown += show_tokens(secure_kafka, make_producer, settings_for)
    shown.append(caplog.text)
    shown.append(json.dumps(status()))
    shown.append(cyproducer("status").stdout)
    shown.append(Path("/proc/net/unix").read_text())
    for process in holders(runtime_dir):
        shown += [" ".join(process.cmdline()), process.name(), proc_file(process.pid, "environ").decode()]
    for path in runtime_dir.rglob("*"):
        shown.append(path.name)
        if not path.is_socket():
            shown.append(path.read_bytes().decode("latin-1"))
    assert len(shown) > 30
    tokens = [part for token in TOKENS for part in (token, token.rpartition(".")[2])]
    secrets = [MARK, *tokens, *(line for line in key.splitlines() if len(line) > 40)]
    for secret in secrets:
        assert not any(secret in text for text in shown)


def wrong_passwords_of_files(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> list[str]:
    """Return the errors of producers with a password that is not that of its file."""
    keys = secure_kafka.keys
    locked = keys.client("locked", password="another")
    store = str(keys.pkcs12(keys.client("another-store"), "another"))
    certificate = {"ssl_certfile": str(locked.certificate), "ssl_keyfile": str(locked.key)}
    shown = []
    for wrong in (
        {**certificate, "ssl_password": MARK},
        {"ssl_keystore_location": store, "ssl_keystore_password": MARK},
        {"ssl_truststore_location": store, "ssl_truststore_password": MARK, "ssl_cafile": None},
    ):
        with pytest.raises(errors.KafkaError, match="is wrong") as caught:
            make_producer(**settings_for("MTLS", **wrong)).send("unknown", b"never").result(10)
        shown.append(f"{caught.value!r} {caught.value} {caught.getrepr(style='long', showlocals=False)}")
        shown += recorded_locals(caught.value)
    return shown


def test_the_key_of_a_directory(tmp_path: Path) -> None:
    """Each directory has its own key, so that a tag tells nothing about a secret to those who cannot read the key."""
    tmp_path.chmod(0o700)
    other = tmp_path / "other"
    other.mkdir(0o700)
    first = credentials.tag(str(tmp_path), {"sasl_plain_password": "a"})
    assert first == credentials.tag(str(tmp_path), {"sasl_plain_password": "a"})
    assert first != credentials.tag(str(tmp_path), {"sasl_plain_password": "b"})
    assert first != credentials.tag(str(other), {"sasl_plain_password": "a"})
    assert credentials.tag(str(tmp_path), {}) == ""
    key = tmp_path / "credentials.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(Exception, match="other users can read"):
        credentials.tag(str(tmp_path), {"sasl_plain_password": "a"})


def test_threads_that_use_a_directory_first_get_one_key(tmp_path: Path) -> None:
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir(0o700)
        start = threading.Barrier(8)

        def first(directory: Path = directory, start: threading.Barrier = start) -> str:
            start.wait()
            return credentials.tag(str(directory), {"sasl_plain_password": "a"})

        with ThreadPoolExecutor(8) as pool:
            assert len({future.result() for future in [pool.submit(first) for _ in range(8)]}) == 1
        assert [path.name for path in directory.iterdir()] == ["credentials.key"]


def test_a_process_without_the_password_cannot_take_over(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    make_producer(**settings_for("SASL_SSL", "PLAIN")).partitions_for(secure_kafka.topic_for("User:alice"))
    [running] = status()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(20)
        sock.connect(running["socket"])
        wrong = {"sasl_plain_username": "mallory"}
        request = {"op": "replace", "layout": LAYOUT_VERSION, "settings": wrong, "proof": "of nothing"}
        control_messages.send(sock, request)
        answer, descriptors = control_messages.receive(sock)
    assert descriptors == []
    assert answer is not None
    assert (answer["ok"], answer["error"]) == (False, "SETTINGS")
    assert "the secrets in the settings" in answer["message"]
    assert [each["sender_pid"] for each in status()] == [running["sender_pid"]]


@pytest.mark.parametrize("kind", ["a password", "a private key in a file"])
def test_a_sender_with_secrets_writes_no_core_dump(
    kind: str, secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    if kind == "a password":
        make_producer(**settings_for("SASL_SSL", "PLAIN")).partitions_for(secure_kafka.topic_for("User:alice"))
    else:
        own = secure_kafka.keys.client("of-a-file")
        settings = settings_for("MTLS", ssl_certfile=str(own.certificate), ssl_keyfile=str(own.key))
        make_producer(**settings).partitions_for(secure_kafka.topic_for(f"User:CN={own.name}"))
    found = holders(runtime_dir)
    assert found
    for process in found:
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (1, 1)


def test_a_proof_is_for_one_arena() -> None:
    ours, theirs = os.memfd_create("a"), os.memfd_create("b")
    secret = {"sasl_plain_password": "a"}
    try:
        subject = credentials.attaching("c", ours, 1)
        proof = credentials.proof(secret, subject)
        assert credentials.is_proof(proof, secret, subject)
        for other in ((theirs, 1), (ours, 2)):
            assert not credentials.is_proof(proof, secret, credentials.attaching("c", *other))
        assert not credentials.is_proof(proof, secret, credentials.attaching("d", ours, 1))
        assert not credentials.is_proof(proof, {"sasl_plain_password": "b"}, subject)
        assert not credentials.is_proof(None, secret, subject)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_key_that_is_removed_leads_to_another_sender(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    """Nothing is lost: the former sender serves its processes until they end, and both can be seen and stopped."""
    topic = secure_kafka.topic_for("User:alice")
    settings = settings_for("SASL_SSL", "PLAIN", sender_idle_timeout_ms=60_000)
    before = make_producer(**settings)
    before.send(topic, b"0").result(30)
    (runtime_dir / "credentials.key").unlink()
    after = make_producer(**settings)
    after.send(topic, b"1").result(30)
    before.send(topic, b"2").result(30)
    assert secure_kafka.read(topic, 3).value == [b"0", b"1", b"2"]
    sockets = [each["socket"] for each in status()]
    assert len(sockets) == 2
    for producer in (before, after):
        producer.close(10)
    assert cyproducer("stop").returncode != 0, "which one, is for the user to say"
    for path in sockets:
        stopped = cyproducer("stop", "--socket", path)
        assert stopped.returncode == 0, stopped.stderr
    assert status() == []


def test_one_transactional_id_in_two_senders_is_fenced(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path
) -> None:
    """After the key is removed, the second producer of a transactional id fences the first one, as in one sender."""
    topic = secure_kafka.topic_for("User:alice")
    name = f"two-senders-{os.getpid()}"
    secure_kafka.cluster.access.add(
        [Rule("User:alice", operation, "TRANSACTIONAL_ID", name) for operation in ("WRITE", "DESCRIBE")]
    )
    settings = settings_for("SASL_SSL", "PLAIN", transactional_id=name)
    first = make_producer(**settings)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"lost").result(30)
    (runtime_dir / "credentials.key").unlink()
    second = make_producer(**settings)
    second.init_transactions()
    assert len(status()) == 2
    with pytest.raises((errors.ProducerFencedError, errors.InvalidProducerEpochError)):
        first.commit_transaction()
    second.begin_transaction()
    second.send(topic, b"kept").result(30)
    second.commit_transaction()
    assert secure_kafka.read(topic, 1).value == [b"kept"]


def test_a_crash_report_and_a_failed_start_show_no_secret(runtime_dir: Path, tmp_path: Path) -> None:
    """A log of all details, the stacks that faulthandler writes, and tracebacks with the values of local variables."""
    config = tmp_path / "send.properties"
    config.write_text(
        f"bootstrap.servers=127.0.0.1:9\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username=alice\nsasl.password={MARK}\n"
    )
    config.chmod(0o600)
    script = f"""
        import faulthandler, os, pickle, sys, traceback
        from cyproducer import KafkaProducer
        from cyproducer.cli.main import main
        producer = KafkaProducer(bootstrap_servers="127.0.0.1:9", security_protocol="SASL_PLAINTEXT", max_block_ms=1500,
                                 sasl_mechanism="PLAIN", sasl_plain_username="alice", sasl_plain_password={MARK!r},
                                 sender_idle_timeout_ms=200)
        for call in (lambda: producer.send("t", b"v").result(5), lambda: pickle.dumps(producer, protocol=0) and 1 / 0):
            try:
                call()
            except Exception as error:
                print("".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
        faulthandler.dump_traceback(all_threads=True)
        producer.close(1)
        sys.stdin = open(os.devnull)
        main(["send", "--config", {str(config)!r}, "t"])
    """
    done = run_script(script, env={"CYPRODUCER_LOG": "DEBUG"}, check=False)
    shown = [done.stdout, done.stderr]
    for path in runtime_dir.rglob("*.log"):
        shown.append(path.read_text())
    assert len(shown) >= 3
    assert "producer = " in done.stdout or "KafkaProducer" in done.stdout
    assert not any(MARK in text for text in shown)
