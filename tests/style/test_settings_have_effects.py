"""Names, for each supported setting, the test that shows that it changes what happens."""

import ast
import functools
from pathlib import Path

import pytest
from test_tidy import ROOT

from cyproducer.config.settings import SETTINGS

_CODECS = "tests/integration/producer/test_compression.py::test_a_level_is_used"
_EFFECTS = "tests/integration/engine/test_setting_effects.py::"
_RECONNECT = _EFFECTS + "test_reconnect_backoff"
_PAUSES = "tests/integration/engine/test_engine_backoff.py::test_pauses_of_batches_are_those_of_exponential_backoff"
_SEND = "tests/unit/producer/test_producer_send.py::"
_TOPICS = "tests/integration/engine/test_engine_topics.py::"
_BROKERS = "tests/integration/engine/test_engine_brokers.py::"
_RACK = "tests/integration/engine/test_engine_shares.py"
_RACK += "::test_partitions_of_the_rack_are_preferred_while_one_of_them_answers"
_STATES = "tests/unit/sender/test_connection_states.py::"
_SETUP = _STATES + "test_the_time_for_an_attempt_doubles_up_to_its_maximum"
_TRANSACTIONS = "tests/unit/producer/test_transactions.py::"
_WINDOWS = "tests/integration/producer/test_metrics_kafka.py::"
_SIZES = "tests/integration/engine/test_engine_brokers.py::test_sizes_of_socket_buffers"

_PROVIDER = "tests/integration/security/test_token_provider.py::"
_LISTENERS = "tests/integration/security/test_listeners_kafka.py::"
_TLS = "tests/unit/security/test_tls.py::"
_TRUST = _TLS + "test_the_authority_of_the_broker_is_trusted"
_OWN = _TLS + "test_the_client_is_known_by_its_certificate"
_STORE = _TLS + "test_a_wrong_password_of_a_store"
_LOGIN = "tests/unit/security/test_login.py::"
_OAUTH = _LOGIN + "test_settings_of_the_endpoint_and_of_the_refresh"
_ENDPOINT = "tests/unit/security/test_oauth_endpoint.py::"
_REQUEST = _ENDPOINT + "test_the_request_is_that_of_kafka"
_REFRESHER = "tests/unit/security/test_token_refresher.py::"
_LIFETIME = _REFRESHER + "test_a_token_is_refreshed_after_its_part_of_the_lifetime"
_PERIOD = _REFRESHER + "test_the_shortest_period_and_the_time_before_the_expiry_can_be_set"
_BACKOFF = _REFRESHER + "test_the_backoff_can_be_set"
_KERBEROS = _LOGIN + "test_the_users_settings_of_kerberos_reach_its_library"
_CONFIG = "tests/unit/config/test_config_"

#: Setting -> the test that fails if the setting has no effect; or several: one that shows that the part of the code
#: that uses the setting gets it, and one that shows what it does there.
SHOWN_BY: dict[str, str | tuple[str, ...]] = {
    "bootstrap_servers": "tests/integration/sender/test_rebootstrap_kafka.py"
    "::test_a_producer_follows_its_bootstrap_address_to_other_brokers",
    "client_id": _EFFECTS + "test_client_id",
    "key_serializer": _SEND + "test_serializers",
    "value_serializer": _SEND + "test_serializers",
    "partitioner": "tests/unit/producer/test_partitioners.py::test_an_object_gets_javas_arguments_and_the_cluster",
    "interceptors": "tests/unit/producer/test_interceptors.py"
    "::test_the_chain_changes_the_record_before_it_is_serialized",
    "acks": "tests/integration/engine/test_engine_faults.py::test_acks_of_all_kinds_in_one_partition",
    "enable_idempotence": _EFFECTS + "test_enable_idempotence",
    "compression_type": "tests/integration/producer/test_compression.py"
    "::test_batches_are_compressed_and_read_as_they_were_sent",
    "compression_level": _CODECS,
    "compression_gzip_level": _CODECS,
    "compression_lz4_level": _CODECS,
    "compression_zstd_level": _CODECS,
    "batch_size": "tests/unit/producer/test_setting_effects_of_producers.py::test_batch_size",
    "linger_ms": _EFFECTS + "test_linger_ms",
    "buffer_memory": "tests/unit/producer/test_setting_effects_of_producers.py::test_buffer_memory",
    "max_block_ms": "tests/unit/producer/test_setting_effects_of_producers.py::test_max_block_ms",
    "max_request_size": "tests/usage/test_usage_bad_records.py::test_the_largest_record_that_fits_is_taken",
    "delivery_timeout_ms": "tests/integration/engine/test_engine_certainty.py"
    "::test_batch_refused_at_every_attempt_was_not_written",
    "request_timeout_ms": _EFFECTS + "test_request_timeout_ms",
    "retries": "tests/integration/engine/test_engine_faults.py::test_retries_run_out",
    "retry_backoff_ms": _PAUSES,
    "retry_backoff_max_ms": _PAUSES,
    "max_in_flight_requests_per_connection": _EFFECTS + "test_max_in_flight_requests_per_connection",
    "metadata_max_age_ms": _EFFECTS + "test_metadata_max_age_ms",
    "metadata_max_idle_ms": _TOPICS + "test_a_topic_without_batches_is_forgotten_after_metadata_max_idle_ms",
    "metadata_recovery_strategy": "tests/integration/sender/test_rebootstrap_kafka.py"
    "::test_a_producer_follows_its_bootstrap_address_to_other_brokers",
    "metadata_recovery_rebootstrap_trigger_ms": _BROKERS
    + "test_bootstrap_servers_are_asked_when_there_is_no_metadata_for_too_long",
    "metrics_num_samples": _WINDOWS + "test_the_number_of_windows_is_a_setting",
    "metrics_sample_window_ms": _WINDOWS + "test_the_windows_are_settings",
    "enable_metrics_push": "tests/integration/engine/test_engine_telemetry.py::test_the_setting_turns_it_off",
    "client_dns_lookup": _BROKERS + "test_canonical_names_are_for_bootstrap_servers",
    "client_rack": _RACK,
    "partitioner_rack_aware": _RACK,
    "socket_connection_setup_timeout_ms": _SETUP,
    "socket_connection_setup_timeout_max_ms": _SETUP,
    "partitioner_ignore_keys": "tests/unit/producer/test_bulk_standin.py"
    "::test_ignored_keys_follow_the_sticky_partition",
    "partitioner_adaptive_partitioning_enable": "tests/unit/producer/test_partition_draw.py"
    "::test_without_adaptive_partitioning_all_that_have_a_leader_are_drawn_alike",
    "partitioner_availability_timeout_ms": "tests/integration/engine/test_engine_shares.py"
    "::test_partitions_of_a_broker_that_does_not_answer_are_avoided_until_it_does",
    "connections_max_idle_ms": _EFFECTS + "test_connections_max_idle_ms",
    "send_buffer_bytes": _SIZES,
    "receive_buffer_bytes": _SIZES,
    "reconnect_backoff_ms": (_RECONNECT, _STATES + "test_pauses_double_up_to_their_maximum"),
    "reconnect_backoff_max_ms": (_RECONNECT, _STATES + "test_pauses_double_up_to_their_maximum"),
    "transactional_id": _TRANSACTIONS + "test_a_transaction_from_the_first_call_to_the_commit",
    "transaction_timeout_ms": "tests/integration/transactions/test_transactions_kafka.py"
    "::test_the_broker_aborts_a_transaction_after_its_time",
    "ssl_cafile": _TRUST,
    "ssl_cadata": _TRUST,
    "ssl_truststore_location": _TRUST,
    "ssl_truststore_password": _TRUST,
    "ssl_truststore_type": _CONFIG + "tls.py::test_a_type_that_the_file_does_not_have",
    "ssl_certfile": _OWN,
    "ssl_keyfile": _OWN,
    "ssl_certdata": _OWN,
    "ssl_keydata": _OWN,
    "ssl_keystore_location": _OWN,
    "ssl_keystore_type": _CONFIG + "tls.py::test_a_type_that_the_file_does_not_have",
    "security_protocol": _LISTENERS + "test_each_mechanism",
    "ssl_password": _TLS + "test_a_key_without_its_password",
    "ssl_keystore_password": _STORE,
    "ssl_check_hostname": _TLS + "test_a_certificate_for_another_host",
    "ssl_crlfile": _TLS + "test_a_revoked_certificate",
    "ssl_ciphers": _TLS + "test_only_the_given_ciphers_are_used",
    "ssl_enabled_protocols": _TLS + "test_only_the_enabled_versions_are_used",
    "ssl_protocol": _TLS + "test_kafkas_newest_version_is_the_newest_one",
    "sasl_mechanism": _LISTENERS + "test_each_mechanism",
    "sasl_plain_username": _LOGIN + "test_user_and_password",
    "sasl_plain_password": _LISTENERS + "test_a_wrong_password",
    "sasl_jaas_config": _LOGIN + "test_user_and_password",
    "sasl_kerberos_name": _KERBEROS,
    "sasl_oauth_token_provider": _PROVIDER + "test_each_form_of_a_provider",
    "sasl_oauth_principal": _PROVIDER + "test_a_declared_principal_decides_who_shares_a_sender",
    "sasl_oauthbearer_token_endpoint_url": _LOGIN + "test_a_token_of_a_file",
    "sasl_oauthbearer_client_credentials_client_secret": _LISTENERS + "test_a_wrong_secret_of_the_token_endpoint",
    "sasl_kerberos_service_name": _KERBEROS,
    "sasl_kerberos_domain_name": _KERBEROS,
    "sasl_kerberos_principal": _KERBEROS,
    "sasl_kerberos_keytab": _KERBEROS,
    "sasl_kerberos_ticket_cache": _KERBEROS,
    "sasl_kerberos_config": "tests/kerberos/test_kerberos_kafka.py::test_the_environment_of_the_application_counts",
    "sasl_oauthbearer_client_credentials_client_id": (_OAUTH, _REQUEST),
    "sasl_oauthbearer_scope": _LOGIN + "test_a_token_of_an_endpoint_is_fetched_once",
    "sasl_oauthbearer_extensions": _LOGIN + "test_a_token_of_an_endpoint_is_fetched_once",
    "sasl_oauthbearer_header_urlencode": (_OAUTH, _ENDPOINT + "test_id_and_secret_are_url_encoded_on_request"),
    "https_ca_location": (_OAUTH, _ENDPOINT + "test_a_certificate_is_checked_with_the_given_file"),
    "sasl_login_refresh_window_factor": (_OAUTH, _LIFETIME),
    "sasl_login_refresh_window_jitter": (_OAUTH, _LIFETIME),
    "sasl_login_refresh_min_period_seconds": (_OAUTH, _PERIOD),
    "sasl_login_refresh_buffer_seconds": (_OAUTH, _PERIOD),
    "sasl_login_retry_backoff_ms": (_OAUTH, _BACKOFF),
    "sasl_login_retry_backoff_max_ms": (_OAUTH, _BACKOFF),
    "sasl_login_connect_timeout_ms": (_OAUTH, _ENDPOINT + "test_an_endpoint_that_takes_no_connection_is_given_up"),
    "sasl_login_read_timeout_ms": (_OAUTH, _ENDPOINT + "test_a_silent_endpoint_is_given_up"),
    "sender": "tests/integration/sender/test_sender_process.py"
    "::test_named_sender_is_used_and_its_settings_are_compared",
    "sender_idle_timeout_ms": "tests/integration/sender/test_sender_process.py"
    "::test_sender_ends_when_idle_and_leaves_nothing_but_its_log",
    "exit_flush_timeout_ms": "tests/unit/producer/test_producer_exit.py"
    "::test_exit_flush_timeout_of_a_process_and_of_multiprocessings_children",
    "api_version": "tests/unit/config/test_config.py::test_api_version_is_ignored_with_a_warning",
}


def test_every_supported_setting_has_a_test_that_shows_it():
    assert set(SHOWN_BY) == {setting.name for setting in SETTINGS if setting.supported}


@functools.cache
def functions_of(path: Path) -> set[str]:
    """Return the names of the functions of a file, without running it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


@pytest.mark.parametrize("name", SHOWN_BY)
def test_the_tests_exist(name):
    tests = SHOWN_BY[name]
    for test in (tests,) if isinstance(tests, str) else tests:
        path, _, function = test.partition("::")
        assert function in functions_of(ROOT / path), test
