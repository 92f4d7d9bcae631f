"""Tests settings: names, types, ranges, rules between settings, unsupported ones, secrets, copies."""

import copy
import dataclasses
import functools
import json
import logging
import math
import pickle
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_samples import parse, refused

from cyproducer.config.kinds import INT_MAX
from cyproducer.config.rules import default_exit_flush_timeout_ms
from cyproducer.config.settings import Settings
from cyproducer.config.table import BOTH, FRONT_END, GIB, KIB, MIB, SENDER, SETTINGS
from cyproducer.errors import KafkaConfigurationError

WITH_ATTRIBUTE = [setting for setting in SETTINGS if setting.attribute]


# --- names --------------------------------------------------------------------------------------------


def test_the_rows_of_the_table():
    assert len({setting.kafka_name for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        assert setting.side in (FRONT_END, SENDER, BOTH)
        assert setting.meaning
        assert setting.kind.allowed


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_is_accepted_in_both_spellings(setting):
    for name in {setting.name, setting.kafka_name} - {"bootstrap_servers", "bootstrap.servers"}:
        settings = parse(**{name: setting.default})
        if setting.attribute and setting.name != "exit_flush_timeout_ms":
            assert getattr(settings, setting.name) == setting.default


def test_defaults_are_kafkas_where_not_said_otherwise():
    settings = parse()
    assert (settings.acks, settings.enable_idempotence, settings.retries) == (-1, True, 2147483647)
    assert (settings.batch_size, settings.linger_ms, settings.buffer_memory) == (65536, 5, 33554432)
    assert (settings.max_block_ms, settings.max_request_size) == (60000, 1048576)
    assert (settings.delivery_timeout_ms, settings.request_timeout_ms) == (120000, 30000)
    assert (settings.retry_backoff_ms, settings.retry_backoff_max_ms) == (100, 1000)
    assert (settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms) == (50, 1000)
    assert (settings.send_buffer_bytes, settings.receive_buffer_bytes) == (131072, 32768)
    assert settings.max_in_flight_requests_per_connection == 5
    assert (settings.metadata_max_age_ms, settings.connections_max_idle_ms) == (300000, 540000)
    assert (settings.client_id, settings.security_protocol) == ("cyproducer", "PLAINTEXT")
    assert settings.sender_idle_timeout_ms == 30000
    assert settings.explicit == {"bootstrap_servers"}


def test_an_unknown_name_is_reported_with_the_nearest():
    assert "'linger_m' is not a known setting; did you mean 'linger_ms'?" in refused(linger_m=5)
    assert "did you mean 'linger.ms'?" in refused(**{"linger.mss": 5})
    assert "did you mean 'bootstrap_servers'?" in refused(bootstrap_server="x")
    assert "did you mean 'linger.ms'?" in refused(**{"queue.buffering.max.ms": 5})
    assert "did you mean 'compression_type'?" in refused(compression="lz4")


def test_a_setting_in_both_spellings_is_refused():
    message = refused(**{"linger.ms": 5, "linger_ms": 5})
    assert "linger_ms is given twice" in message


# --- types and ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [s.name for s in SETTINGS if s.kind.allowed.startswith("an integer") and s.name != "retries"]
)
def test_integers(name):
    # None leaves a setting of TLS or SASL out, as in kafka-python.
    none = () if name.startswith("sasl_") else (None,)
    for value in ("5", 5.0, True, *none, [5], b"5", math.nan, -(2**70), 2**70):
        message = refused(**{name: value})
        assert message.startswith(f"{name}=")
        assert "expected an integer from" in message


def test_text_is_a_number_or_a_boolean_only_in_kafkas_spelling():
    settings = parse(**{
        "linger.ms": "7", "batch.size": " 1024 ", "retries": "3", "enable.idempotence": "True",
        "partitioner.ignore.keys": "false", "acks": "all", "client.id": "c",
    })  # fmt: skip
    assert (settings.linger_ms, settings.batch_size, settings.retries) == (7, 1024, 3)
    assert (settings.enable_idempotence, settings.partitioner_ignore_keys) == (True, False)
    assert parse(**{"linger.ms": "0.5"}).linger_ms == 0.5
    for name, value in {"linger_ms": "7", "batch_size": "1", "enable_idempotence": "true"}.items():
        assert repr(value) in refused(**{name: value})
    for value in ("", "x", "1_0", "1e3", "0x10", "nan", "inf", "-1", "٣"):
        assert refused(**{"linger.ms": value}).startswith("linger.ms=")
        assert refused(**{"batch.size": value}).startswith("batch.size=")
    for value in ("yes", "1", "", 1, 0, None):
        refused(**{"enable.idempotence": value})


def test_integers_of_other_types_and_kafka_pythons_infinite_retries():
    import numpy

    settings = parse(batch_size=numpy.int64(100), retries=math.inf)
    assert type(settings.batch_size) is int
    assert settings.retries == INT_MAX
    refused(batch_size=math.inf)


@pytest.mark.parametrize("value", [0, 0.0, 0.25, 5, 1000])
def test_linger_takes_fractions(value):
    assert parse(linger_ms=value).linger_ms == value


@pytest.mark.parametrize("value", [-1, -0.1, math.inf, math.nan, "5", True, None, 2**63])
def test_linger_refuses(value):
    assert refused(linger_ms=value).startswith("linger_ms=")


@pytest.mark.parametrize(("value", "acks"), [(0, 0), (1, 1), (-1, -1), ("all", -1), ("0", 0), ("1", 1), ("-1", -1)])
def test_acks(value, acks):
    assert parse(acks=value).acks == acks


@pytest.mark.parametrize("value", [7, 2, -2, "ALL", "", None, True, False, 1.0, b"all", [1], "quorum"])
def test_acks_refused(value):
    message = refused(acks=value)
    assert message.startswith("acks=")
    assert 'expected 0, 1, or "all"' in message


def test_sender_group():
    assert parse(sender_group="billing").sender_settings()["sender_group"] == "billing"
    assert parse(sender_group=None).sender_settings() == parse().sender_settings()
    for value in ("a\n", "g" * 256, 1):
        assert refused(sender_group=value).startswith("sender_group=")


def test_client_id():
    assert parse(client_id="app-1").client_id == "app-1"
    assert parse(client_id=None).client_id == "cyproducer"
    for value in ("", "x" * 256, "a\nb", 5, b"app"):
        assert refused(client_id=value).startswith("client_id=")


class WithSerialize:
    def serialize(self, topic, headers, data):
        return data


def test_serializers():
    instance = WithSerialize()
    settings = parse(key_serializer=str.encode, value_serializer=instance)
    assert settings.key_serializer is str.encode
    assert settings.value_serializer is instance
    assert "not an instance" in refused(value_serializer=WithSerialize)
    assert "expected None, a callable" in refused(key_serializer="org.apache.kafka.StringSerializer")
    assert parse(**{"value.serializer": instance}).value_serializer is instance


# --- brokers and the sender ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "servers"),
    [
        ("a:1,b:2", ("a:1", "b:2")), (["a:1", "b:2"], ("a:1", "b:2")), (("B", " a:1 "), ("b:9092", "a:1")),
        ("[::1]:9092", ("[::1]:9092",)), ("[FE80::1%eth0]", ("[fe80::1%eth0]:9092",)),
        ("127.0.0.1", ("127.0.0.1:9092",)), ("PLAINTEXT://h:1", ("h:1",)), ("a:1,,A:1,", ("a:1",)),
        ("a:09092", ("a:9092",)),
    ],
)  # fmt: skip
def test_bootstrap_servers(value, servers):
    assert parse(bootstrap_servers=value).bootstrap_servers == servers
    assert parse(**{"bootstrap_servers": value}).explicit == {"bootstrap_servers"}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("a:1,b:x", "'b:x'"), ("a:1,b:0", "'b:0'"), ("b:65536", "'b:65536'"), ("b:", "'b:'"), (":9092", "':9092'"),
        ("::1", "brackets"), ("[::1", "'[::1'"), ("a b:1", "'a b:1'"),
        ("SASL_SSL://h:1", "contradicts security_protocol='PLAINTEXT'"), ("http://h:1/x", "'http://h:1/x'"),
        ("", "no broker"), ([], "no broker"), (5, "5"), ([5], "list"), ({"a": 1}, "dict"),
    ],
)  # fmt: skip
def test_bootstrap_servers_refused(value, named):
    message = refused(bootstrap_servers=value)
    assert message.startswith("bootstrap_servers")
    assert named in message


def test_no_broker_and_no_sender():
    for settings in ({}, {"bootstrap_servers": None}, {"acks": 1}):
        with pytest.raises(KafkaConfigurationError, match="bootstrap_servers is missing"):
            Settings.parse(**settings)


def test_sender_socket(tmp_path, monkeypatch):
    settings = Settings.parse(sender="/run/kafka.sock")
    assert settings.sender == "/run/kafka.sock"
    assert settings.bootstrap_servers == ()
    assert settings.explicit_sender_settings() == {}
    monkeypatch.chdir(tmp_path)
    assert Settings.parse(sender="s").sender == str(tmp_path / "s")
    assert Settings.parse(sender=tmp_path / "s").sender == str(tmp_path / "s")
    for value in ("", 5, b"/x", "a\0b", "/" + "x" * 107):
        with pytest.raises(KafkaConfigurationError, match="sender="):
            Settings.parse(sender=value)
    assert Settings.parse(sender="/" + "x" * 106).sender


def test_explicit_sender_settings_are_remembered():
    settings = Settings.parse(
        sender="/s", bootstrap_servers="B,a", acks=1, **{"request.timeout.ms": "30000"}, max_request_size=MIB
    )
    assert settings.explicit_sender_settings() == {
        "bootstrap_servers": ["a:9092", "b:9092"],
        "max_request_size": MIB,
        "request_timeout_ms": 30000,
    }


def test_sender_settings_are_canonical():
    one = parse(bootstrap_servers="B:1,a:2,b:1", linger_ms=1, acks=0, buffer_memory=MIB)
    other = parse(bootstrap_servers=["A:2", "b:1"], client_id="other")
    assert one.sender_settings() == other.sender_settings()
    assert one.sender_settings()["bootstrap_servers"] == ["a:2", "b:1"]
    assert list(one.sender_settings()) == sorted(one.sender_settings())
    assert json.loads(json.dumps(one.sender_settings())) == one.sender_settings()
    assert parse(request_timeout_ms=1).sender_settings() != parse().sender_settings()
    names = {s.name for s in WITH_ATTRIBUTE if s.side == SENDER and not s.secret}
    assert set(one.sender_settings()) == names
    assert {"bootstrap_servers", "sender_group", "max_request_size", "security_protocol"} <= names
    assert (
        not {"acks", "linger_ms", "buffer_memory", "sender", "sender_idle_timeout_ms", "client_id", "retries"} & names
    )


def test_a_sender_is_configured_by_a_front_ends_sender_settings(caplog):
    front_end = parse(
        acks=1,
        max_in_flight_requests_per_connection=20,
        max_request_size=64 * MIB,
        request_timeout_ms=500_000,
    )
    caplog.clear()
    settings = Settings.for_sender(json.loads(json.dumps(front_end.sender_settings())))
    assert settings.sender_settings() == front_end.sender_settings()
    assert not caplog.records
    with pytest.raises(KafkaConfigurationError, match="linger_ms is a setting of the producer"):
        Settings.for_sender({"bootstrap_servers": "a", "linger_ms": 5})
    with pytest.raises(KafkaConfigurationError, match="bootstrap_servers is missing"):
        Settings.for_sender({"client_id": "x"})
    settings = Settings.for_sender({"bootstrap.servers": "a", "sender_idle_timeout_ms": 5, "client_id": "c"})
    assert (settings.sender_idle_timeout_ms, settings.client_id) == (5, "c")


def test_front_end_settings():
    settings = parse(acks="all", linger_ms=2.5, sender_idle_timeout_ms=7)
    assert json.loads(json.dumps(settings.front_end_settings())) == {
        "acks": -1, "batch_size": 65536, "buffer_memory": 32 * MIB, "client_id": "cyproducer",
        "compression_level": None, "compression_type": None, "delivery_timeout_ms": 120000,
        "enable_idempotence": True, "linger_ms": 2.5, "max_block_ms": 60000, "metrics_num_samples": 2,
        "metrics_sample_window_ms": 30000, "retries": INT_MAX,
        "sender_idle_timeout_ms": 7,
    }  # fmt: skip


# --- rules between settings ---------------------------------------------------------------------------


@pytest.mark.parametrize("conflict", [{"acks": 0}, {"acks": 1}, {"acks": "1"}, {"retries": 0}])
def test_settings_against_idempotence_win_unless_both_are_explicit(conflict, caplog):
    name = next(iter(conflict))
    with caplog.at_level(logging.WARNING, "cyproducer"):
        assert parse(**conflict).enable_idempotence is False
    assert [record.name for record in caplog.records] == ["cyproducer"]
    assert f"{name}={conflict[name]} turns idempotence off" in caplog.text
    caplog.clear()
    message = refused(**conflict, enable_idempotence=True)
    assert f"enable_idempotence=True contradicts {name}={conflict[name]}" in message
    assert parse(**conflict, enable_idempotence=False).enable_idempotence is False
    assert not caplog.records


def test_more_than_five_in_flight_with_idempotence_is_refused():
    assert parse(max_in_flight_requests_per_connection=5).enable_idempotence
    for more in ({}, {"enable_idempotence": True}):
        message = refused(max_in_flight_requests_per_connection=6, **more)
        assert "max_in_flight_requests_per_connection=6 contradicts enable_idempotence=True" in message
    assert parse(max_in_flight_requests_per_connection=6, enable_idempotence=False)
    assert parse(max_in_flight_requests_per_connection=6, acks=1)


def test_delivery_timeout_covers_linger_and_a_request(caplog):
    assert parse(delivery_timeout_ms=30005).delivery_timeout_ms == 30005
    message = refused(delivery_timeout_ms=30004)
    assert "delivery_timeout_ms=30004" in message
    assert "30005 or more" in message
    assert not caplog.records
    assert parse(request_timeout_ms=200_000, linger_ms=0.5).delivery_timeout_ms == 200_001
    assert "delivery_timeout_ms is raised" in caplog.text
    assert parse(request_timeout_ms=INT_MAX).delivery_timeout_ms == INT_MAX


def test_only_the_base_backoff_is_a_constant_one():
    assert parse(reconnect_backoff_ms=70).reconnect_backoff_max_ms == 70
    assert parse(reconnect_backoff_ms=70, reconnect_backoff_max_ms=900).reconnect_backoff_max_ms == 900


def test_buffer_memory(caplog):
    assert parse(buffer_memory=MIB + 1).buffer_memory == MIB + 64 * KIB
    assert parse(buffer_memory=4 * GIB).buffer_memory == 4 * GIB
    for value in (MIB - 1, 4 * GIB + 1, 0, -1):
        assert f"buffer_memory={value}: expected an integer from 1048576 to 4294967296" in refused(buffer_memory=value)
    message = refused(buffer_memory=2 * MIB, max_request_size=2 * MIB + 1)
    assert "buffer_memory=2097152 is less than max_request_size=2097153" in message
    assert not caplog.records
    assert parse(max_request_size=32 * MIB + 1).buffer_memory == 32 * MIB + 64 * KIB
    assert "buffer_memory is raised" in caplog.text


def test_batch_size(caplog):
    assert parse(batch_size=0).batch_size == 0
    assert parse(batch_size=MIB).batch_size == MIB
    assert "batch_size=1048577 is more than max_request_size=1048576" in refused(batch_size=MIB + 1)
    assert not caplog.records
    assert parse(max_request_size=1000).batch_size == 1000
    assert "batch_size is lowered" in caplog.text


GIVEN_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "acks": st.sampled_from([0, 1, -1, "all"]),
        "enable_idempotence": st.booleans(),
        "retries": st.integers(0, 3),
        "max_in_flight_requests_per_connection": st.integers(1, 8),
        "linger_ms": st.one_of(st.integers(0, INT_MAX), st.floats(0, 1e6)),
        "request_timeout_ms": st.integers(1, INT_MAX),
        "delivery_timeout_ms": st.integers(0, INT_MAX),
        "batch_size": st.integers(0, INT_MAX),
        "max_request_size": st.integers(1, GIB),
        "buffer_memory": st.integers(MIB, 4 * GIB),
    },
)


@given(GIVEN_SETTINGS)
def test_accepted_settings_obey_every_rule_and_keep_explicit_values(asked):
    message = ""
    try:
        settings = parse(**asked)
    except KafkaConfigurationError as error:
        message = str(error)
    if message:
        assert any(name in message for name in asked)
        return
    if settings.enable_idempotence:
        assert settings.acks == -1
        assert settings.retries > 0
        assert settings.max_in_flight_requests_per_connection <= 5
    assert settings.delivery_timeout_ms >= min(settings.linger_ms + settings.request_timeout_ms, INT_MAX)
    assert settings.batch_size <= settings.max_request_size <= settings.buffer_memory <= 4 * GIB
    assert settings.buffer_memory % (64 * KIB) == 0
    for name in set(asked) - {"acks", "buffer_memory"}:
        assert getattr(settings, name) == asked[name]
    assert pickle.loads(pickle.dumps(settings)) == copy.deepcopy(settings) == settings


# --- values without effect ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression_type", None), ("compression_type", "none"), ("compression.type", "none"), ("interceptors", []),
        ("interceptor.classes", ""), ("partitioner", None), ("transactional_id", None),
        ("transaction.timeout.ms", "60000"), ("security_protocol", "plaintext"), ("ssl_cafile", None),
        ("ssl_check_hostname", True), ("ssl.endpoint.identification.algorithm", "https"), ("sasl_mechanism", None),
        ("partitioner.availability.timeout.ms", "0"),
    ],
)  # fmt: skip
def test_values_without_effect_are_accepted(name, value, caplog):
    settings = parse(**{name: value})
    assert settings.sender_settings() == parse().sender_settings()
    assert not caplog.records


def test_wrong_values_name_the_allowed_ones():
    assert "expected one of None, 'none', 'gzip'" in refused(compression_type="brotli")
    assert "expected one of 'PLAINTEXT', 'SSL'" in refused(security_protocol="TLS")


def test_an_object_that_refuses_comparison_is_refused_by_name():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    assert "partitioner=<Odd>" in refused(partitioner=Odd())
    assert "interceptors=<Odd>" in refused(interceptors=Odd())
    assert "sasl_oauth_token_provider=<hidden>" in refused(sasl_oauth_token_provider=Odd())
    assert "SSLContext cannot be given to the sender" in refused(ssl_context=Odd())


def test_api_version_is_ignored_with_a_warning(caplog):
    assert parse(api_version=(2, 5)).explicit == {"bootstrap_servers"}
    assert "api_version is ignored" in caplog.text


# --- secrets ------------------------------------------------------------------------------------------

PUNCTUATION = "!$%&/()=?*+~#-_,:;'\"\\é"
CHARACTERS = string.ascii_letters + string.digits + PUNCTUATION
SECRET = st.text(CHARACTERS, min_size=6, max_size=40).map("Zq7".__add__)


def test_no_part_of_a_brokers_credentials_is_printed():
    for value in ("user:hunt,er2@h:1", ["a:1", "user:hunt,er2@h:1"], "a:1,hunt:er2,x@h"):
        message = refused(bootstrap_servers=value)
        assert "credentials" in message
        assert "hunt" not in message
        assert "er2" not in message


SHOWN = {setting.name for setting in SETTINGS if setting.shown}


def error_or_repr(asked):
    try:
        return repr(parse(**asked))
    except KafkaConfigurationError as error:
        return str(error)


@given(SECRET, st.sampled_from([*(s.name for s in SETTINGS), "unheard_of"]))
def test_no_error_prints_a_secret_wherever_else_it_was_put(secret, wrong_name):
    for password in ("sasl_plain_password", "sasl.jaas.config", "ssl_keyfile", "password"):
        for asked in ({wrong_name: secret, password: secret}, {password: secret.encode(), wrong_name: secret}):
            message = error_or_repr({"security_protocol": "SASL_SSL", **asked})
            if message.startswith("Settings(") and wrong_name in SHOWN:
                continue  # the setting accepts the value
            assert secret not in message
            assert repr(secret)[1:-1] not in message


@given(SECRET)
def test_no_error_prints_a_secret_of_its_own(secret):
    for value in (secret, secret.encode(), [secret], {"x": secret}, functools.partial(print, secret)):
        for name in ("sasl_oauth_token_provider", "sasl_pasword", "ssl_password", "passwort"):
            assert secret not in error_or_repr({name: value, "security_protocol": "SSL"})
    for value in ([secret], {"x": secret}, functools.partial(print, secret), secret.encode()):
        for name in ("acks", "linger_ms", "client_id", "compression_type"):
            assert secret not in refused(**{name: value})
    for value in (f"password={secret}", f"https://user:{secret}@host", f"user:{secret}@host:9092"):
        for name in ("bootstrap_servers", "acks", "security_protocol", "linger.ms", "compression_type"):
            assert secret not in refused(**{name: value})
        assert secret not in refused(bootstrap_servers=["a:1", value])
        assert secret not in refused(**{f"sasl_plain_password={secret}": 1})
        assert secret not in refused(**{f"linger_msx={secret}": 1})


@given(SECRET)
def test_repr_prints_no_serializers_secrets(secret):
    settings = parse(value_serializer=functools.partial(print, secret), sasl_plain_password=None)
    assert secret not in repr(settings)
    assert secret not in str(settings)
    assert "value_serializer=<partial>" in repr(settings)
    assert secret not in repr(settings.sender_settings()) + repr(settings.front_end_settings())


# --- copies -------------------------------------------------------------------------------------------


def test_settings_pickle_and_copy_as_what_was_given(caplog):
    settings = parse(acks=1, key_serializer=str.encode, value_serializer=json.dumps, buffer_memory=MIB + 1)
    caplog.clear()
    for other in (copy.deepcopy(settings), copy.copy(settings), pickle.loads(pickle.dumps(settings))):
        assert other == settings
        assert other.explicit == settings.explicit
    assert not caplog.records


def test_settings_are_frozen():
    settings = parse()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.acks = 0
    assert not hasattr(settings, "__dict__")


def test_the_default_exit_flush_is_decided_where_the_settings_come_to(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    settings = parse()
    assert settings.exit_flush_timeout_ms == 10_000
    pickled, chosen = pickle.dumps(settings), pickle.dumps(parse(exit_flush_timeout_ms=0))
    monkeypatch.setattr("cyproducer.config.settings.default_exit_flush_timeout_ms", lambda: 0)
    assert pickle.loads(pickled).exit_flush_timeout_ms == 0
    assert pickle.loads(chosen).exit_flush_timeout_ms == 0


# --- container or service -----------------------------------------------------------------------------

INITIAL, OTHER = "pid:[4026531836]", "pid:[4026532999]"
SESSION = "0::/user.slice/session-1.scope\n"
TERMINAL = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-terminal.scope\n"
SERVICE = "12:cpu:/\n0::/system.slice/app.service\n"
SLURM = "12:cpu:/\n0::/system.slice/slurmstepd.scope/job_4/step_0/user/task_0\n"


@pytest.mark.parametrize(
    ("namespace", "cgroup", "file", "variables", "expected"),
    [
        (INITIAL, SESSION, None, {}, 0),
        (INITIAL, TERMINAL, None, {}, 0),  # systemd's user manager is a service, but this is none
        (INITIAL, SESSION, None, {"KUBERNETES_SERVICE_HOST": "", "INVOCATION_ID": "", "container": ""}, 0),
        (INITIAL, SESSION, None, {"KUBERNETES_SERVICE_HOST": "x"}, 10_000),
        (INITIAL, SESSION, None, {"INVOCATION_ID": "x"}, 10_000),
        (INITIAL, SESSION, None, {"container": "x"}, 10_000),
        (INITIAL, SESSION, ".dockerenv", {}, 10_000),
        (INITIAL, SESSION, "run/.containerenv", {}, 10_000),
        (OTHER, SESSION, None, {}, 10_000),
        (INITIAL, SERVICE, None, {}, 10_000),
        (INITIAL, SLURM, None, {}, 10_000),
    ],
)
def test_a_container_or_service_waits_at_exit_and_a_login_session_does_not(
    tmp_path, namespace, cgroup, file, variables, expected
):
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "run").mkdir()
    if file is not None:
        (tmp_path / file).touch()
    assert default_exit_flush_timeout_ms(variables, str(tmp_path)) == expected


def test_without_proc_nothing_tells_a_container(tmp_path):
    assert default_exit_flush_timeout_ms({}, str(tmp_path)) == 0
