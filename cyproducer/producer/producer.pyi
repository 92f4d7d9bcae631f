"""Declares the types of kafka_producer.pyx."""

import os
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextvars import Context
from types import TracebackType
from typing import Any, Never, Self, TypeAlias, final

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaError
from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.core.native import Batch, Future, RecordMetadata
from cyproducer.producer.transactions.transaction_manager import Completion
from cyproducer.types import ArrayMetadata

@final
class BulkFuture:
    # The producer makes them: the constructor raises TypeError.
    def __init__(self, *args: Never) -> None: ...
    def result(self, timeout: float | None = None) -> ArrayMetadata: ...
    def exception(self, timeout: float | None = None) -> KafkaError | None: ...
    def get(self, timeout: float | None = None) -> ArrayMetadata: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def value(self) -> ArrayMetadata | None: ...
    def succeeded(self) -> bool: ...
    def failed(self) -> bool: ...
    def retriable(self) -> bool: ...
    def add_done_callback(
        self, function: Callable[[BulkFuture], object], *, context: Context | None = None
    ) -> None: ...
    def remove_done_callback(self, function: Callable[[BulkFuture], object]) -> int: ...
    def add_callback(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> Self: ...
    def add_errback(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> Self: ...
    def add_both(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> Self: ...
    def __await__(self) -> Generator[Any, None, ArrayMetadata]: ...
    def _pending_batches(self, first_only: bool = False) -> list[Batch]: ...

@final
class Transaction:
    def __new__(cls, producer: Any) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

_Servers: TypeAlias = str | Sequence[str]

_Serializer: TypeAlias = Callable[[Any], bytes | bytearray | memoryview | None] | Any

# A name, a callable as in kafka-python, or an object with the method `partition` as in Java.
_Partitioner: TypeAlias = str | Callable[[bytes | None, list[int], list[int]], int] | Any

_HeaderValue: TypeAlias = bytes | bytearray | memoryview | str | None
_Headers: TypeAlias = Mapping[str, _HeaderValue] | Iterable[tuple[str, _HeaderValue]]

# {TopicPartition or (topic, partition): offset or OffsetAndMetadata}, or confluent-kafka's list of TopicPartition.
_Offsets: TypeAlias = Mapping[Any, Any] | Iterable[Any]

_OnDelivery: TypeAlias = Callable[[KafkaError | None, RecordMetadata], object]

class KafkaProducer:
    # Type checkers know only the names in snake case: pass Kafka's dotted names as **settings of type dict[str, Any].
    def __init__(
        self,
        *,
        # tools/generate.py writes the arguments from cyproducer/config/table.py.
        bootstrap_servers: _Servers = ...,
        client_id: str = ...,
        sender_group: str = ...,
        key_serializer: _Serializer | None = ...,
        value_serializer: _Serializer | None = ...,
        partitioner: _Partitioner | None = ...,
        interceptors: Sequence[object] | None = ...,
        acks: int | str = ...,
        enable_idempotence: bool = ...,
        linger_ms: float = ...,
        delivery_timeout_ms: int = ...,
        retries: float = ...,
        batch_size: int = ...,
        buffer_memory: int = ...,
        max_block_ms: int = ...,
        sender_idle_timeout_ms: int = ...,
        metrics_num_samples: int = ...,
        metrics_sample_window_ms: int = ...,
        compression_type: str | None = ...,
        compression_level: int | None = ...,
        compression_gzip_level: int = ...,
        compression_lz4_level: int = ...,
        compression_zstd_level: int = ...,
        max_request_size: int = ...,
        request_timeout_ms: int = ...,
        retry_backoff_ms: int = ...,
        retry_backoff_max_ms: int = ...,
        max_in_flight_requests_per_connection: int = ...,
        metadata_max_age_ms: int = ...,
        metadata_max_idle_ms: int = ...,
        metadata_recovery_strategy: str = ...,
        metadata_recovery_rebootstrap_trigger_ms: int = ...,
        partitioner_ignore_keys: bool = ...,
        partitioner_adaptive_partitioning_enable: bool = ...,
        partitioner_availability_timeout_ms: int = ...,
        partitioner_rack_aware: bool = ...,
        client_rack: str = ...,
        connections_max_idle_ms: int = ...,
        connections_per_broker: int = ...,
        client_dns_lookup: str = ...,
        send_buffer_bytes: int = ...,
        receive_buffer_bytes: int = ...,
        enable_metrics_push: bool = ...,
        reconnect_backoff_ms: int = ...,
        reconnect_backoff_max_ms: int = ...,
        socket_connection_setup_timeout_ms: int = ...,
        socket_connection_setup_timeout_max_ms: int = ...,
        transactional_id: str | None = ...,
        transaction_timeout_ms: int = ...,
        security_protocol: str = ...,
        ssl_cafile: str | os.PathLike[str] | None = ...,
        ssl_cadata: str | None = ...,
        ssl_truststore_location: str | os.PathLike[str] | None = ...,
        ssl_truststore_password: str | None = ...,
        ssl_truststore_type: str | None = ...,
        ssl_certfile: str | os.PathLike[str] | None = ...,
        ssl_keyfile: str | os.PathLike[str] | None = ...,
        ssl_certdata: str | None = ...,
        ssl_keydata: str | None = ...,
        ssl_password: str | None = ...,
        ssl_keystore_location: str | os.PathLike[str] | None = ...,
        ssl_keystore_password: str | None = ...,
        ssl_keystore_type: str | None = ...,
        ssl_check_hostname: bool = ...,
        ssl_crlfile: str | os.PathLike[str] | None = ...,
        ssl_ciphers: str | Sequence[str] | None = ...,
        ssl_enabled_protocols: str | Sequence[str] = ...,
        ssl_protocol: str = ...,
        sasl_mechanism: str | None = ...,
        sasl_plain_username: str | None = ...,
        sasl_plain_password: str | None = ...,
        sasl_jaas_config: str | None = ...,
        sasl_kerberos_service_name: str | None = ...,
        sasl_kerberos_domain_name: str | None = ...,
        sasl_kerberos_name: object | None = ...,
        sasl_kerberos_principal: str | None = ...,
        sasl_kerberos_keytab: str | os.PathLike[str] | None = ...,
        sasl_kerberos_ticket_cache: str | None = ...,
        sasl_kerberos_config: str | None = ...,
        sasl_oauth_token_provider: object | None = ...,
        sasl_oauth_principal: str | None = ...,
        sasl_oauthbearer_token_endpoint_url: str | None = ...,
        sasl_oauthbearer_client_credentials_client_id: str | None = ...,
        sasl_oauthbearer_client_credentials_client_secret: str | None = ...,
        sasl_oauthbearer_scope: str | None = ...,
        sasl_oauthbearer_extensions: str | Mapping[str, str] = ...,
        sasl_oauthbearer_header_urlencode: bool = ...,
        https_ca_location: str | os.PathLike[str] | None = ...,
        sasl_login_refresh_window_factor: float = ...,
        sasl_login_refresh_window_jitter: float = ...,
        sasl_login_refresh_min_period_seconds: int = ...,
        sasl_login_refresh_buffer_seconds: int = ...,
        sasl_login_retry_backoff_ms: int = ...,
        sasl_login_retry_backoff_max_ms: int = ...,
        sasl_login_connect_timeout_ms: int | None = ...,
        sasl_login_read_timeout_ms: int | None = ...,
        proxy_url: str | None = ...,
        proxy_username: str | None = ...,
        proxy_password: str | None = ...,
        sender: str | os.PathLike[str] | None = ...,
        exit_flush_timeout_ms: int | None = ...,
        api_version: object = ...,
    ) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: _OnDelivery | None = None,
    ) -> Future: ...
    def send_async(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: _OnDelivery | None = None,
    ) -> Coroutine[Any, Any, Future]: ...
    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Coroutine[Any, Any, RecordMetadata]: ...
    def send_array(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        partition: Any = None,
        timestamps_ms: Any = None,
        headers: _Headers | Iterable[_Headers | None] | Any = None,
    ) -> BulkFuture: ...
    def send_arrow(self, table: Any, topic: str | None = None) -> BulkFuture: ...
    def flush(self, timeout: float | None = None) -> None: ...
    def flush_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]: ...
    def purge(self, timeout: float | None = None) -> None: ...
    def init_transactions(self, timeout: float | None = None) -> None: ...
    def begin_transaction(self) -> None: ...
    def send_offsets_to_transaction(
        self, offsets: _Offsets, group_metadata: Any, timeout: float | None = None
    ) -> None: ...
    def commit_transaction(self, timeout: float | None = None) -> None: ...
    def abort_transaction(self, timeout: float | None = None) -> None: ...
    def transaction(self) -> Transaction: ...
    def init_transactions_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]: ...
    def send_offsets_to_transaction_async(
        self, offsets: _Offsets, group_metadata: Any, timeout: float | None = None
    ) -> Coroutine[Any, Any, None]: ...
    def commit_transaction_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]: ...
    def abort_transaction_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]: ...
    def close(self, timeout: float | None = None) -> None: ...
    def close_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]: ...
    def partitions_for(self, topic: str) -> set[int]: ...
    def client_instance_id(self, timeout: float | None = None) -> uuid.UUID | None: ...
    def metrics(self) -> dict[str, dict[str, Any]]: ...
    def bootstrap_connected(self) -> bool: ...
    def _channel(self) -> Channel: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

def restore_producer(cls: type[KafkaProducer], settings: Settings) -> KafkaProducer: ...
def run_transactional(
    producer: KafkaProducer,
    method: Callable[..., Coroutine[Any, Any, Completion | None]],
    timeout: float | None,
    *args: Any,
) -> Any: ...
