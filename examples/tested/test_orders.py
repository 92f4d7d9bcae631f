"""Tests the application with both fixtures: `KAFKA=localhost:9092 pytest -n 2 examples/tested`."""

from unittest import mock

import orders

from cyproducer import errors


def test_an_order_is_published_as_json(producer: mock.Mock) -> None:
    assert orders.place(17) == "partition 0, offset 0"
    producer.send.assert_called_once_with("orders", key=b"17", value=b'{"order": 17}')


def test_a_failure_is_reported(producer: mock.Mock) -> None:
    producer.send.side_effect = errors.BufferExhaustedError("no memory")
    assert orders.place(17) == "failed: BufferExhaustedError"


def test_orders_are_in_the_log(kafka: str) -> None:
    assert [orders.place(order) for order in (17, 18)] == ["partition 0, offset 0", "partition 0, offset 1"]
