"""Tests the settings of transactions: values, the rules of Java, and what the sender learns of them."""

import pytest

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError


def parse(**given):
    return Settings.parse(**{"bootstrap_servers": "localhost", **given})


def refused(**given):
    with pytest.raises(KafkaConfigurationError) as caught:
        parse(**given)
    return str(caught.value)


def test_a_transactional_id_needs_idempotence_as_in_java():
    settings = parse(transactional_id="orders", transaction_timeout_ms=1)
    assert settings.enable_idempotence and settings.acks == -1
    told = settings.front_end_settings()
    assert (told["transactional_id"], told["transaction_timeout_ms"]) == ("orders", 1)
    assert not {"transactional_id", "transaction_timeout_ms"} & set(parse().front_end_settings())
    assert "contradicts enable_idempotence=False" in refused(transactional_id="x", enable_idempotence=False)
    for conflict in ({"acks": 0}, {"acks": 1}, {"retries": 0}, {"acks": 1, "retries": 0, "enable_idempotence": True}):
        assert "transactional_id contradicts " in refused(transactional_id="x", **conflict)
    assert "enable_idempotence=True; use 1 to 5" in refused(
        transactional_id="x", max_in_flight_requests_per_connection=6
    )


@pytest.mark.parametrize("value", ["x", "x" * 255, "ü" * 127, " ", "a\nb", "\0"])
def test_a_transactional_id_is_any_short_text(value):
    assert parse(transactional_id=value).transactional_id == value
    assert parse(**{"transactional.id": value}).transactional_id == value


@pytest.mark.parametrize("value", ["", "x" * 256, "ü" * 128, "\ud800", b"x", 1, True])
def test_other_transactional_ids_are_refused(value):
    assert "transactional_id=" in refused(transactional_id=value)
    assert "expected None, or a str of 1 to 255 bytes in UTF-8" in refused(transactional_id=value)
