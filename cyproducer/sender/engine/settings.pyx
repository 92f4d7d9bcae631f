"""Declares the settings that the engine reads. tools/generate.py writes this file from table.py."""


ctypedef struct SenderSettings:
    uint32_t max_request_size
    uint64_t request_timeout_ns
    uint64_t retry_backoff_ns
    uint64_t retry_backoff_max_ns
    uint32_t max_in_flight
    uint64_t unresponsive_ns
    bint rack_aware
    uint32_t connections_per_broker


cdef object read_sender_settings(SenderSettings *into, dict settings):
    """Fill the struct. Raise TypeError for an invalid value."""
    into.max_request_size = settings.get("max_request_size", 1048576)
    into.request_timeout_ns = int(settings.get("request_timeout_ms", 30000) * 1_000_000)
    into.retry_backoff_ns = int(max(settings.get("retry_backoff_ms", 100), 10) * 1_000_000)
    into.retry_backoff_max_ns = int(max(settings.get("retry_backoff_max_ms", 1000), 10) * 1_000_000)
    into.max_in_flight = settings.get("max_in_flight_requests_per_connection", 5)
    into.unresponsive_ns = int(settings.get("partitioner_availability_timeout_ms", 0) * 1_000_000)
    into.rack_aware = settings.get("partitioner_rack_aware", False)
    into.connections_per_broker = settings.get("connections_per_broker", 4)


ctypedef struct FrontEndSettings:
    int16_t acks
    bint enable_idempotence
    int64_t linger_ns
    int64_t delivery_timeout_ns
    uint32_t retries
    uint64_t batch_bytes
    uint32_t samples
    uint64_t window_ns


cdef object read_front_end_settings(FrontEndSettings *into, dict settings):
    """Fill the struct. Raise TypeError for an invalid value."""
    into.acks = settings.get("acks", -1)
    into.enable_idempotence = settings.get("enable_idempotence", True)
    into.linger_ns = int(settings.get("linger_ms", 5) * 1_000_000)
    into.delivery_timeout_ns = int(settings.get("delivery_timeout_ms", 120000) * 1_000_000)
    into.retries = settings.get("retries", 2147483647)
    into.batch_bytes = max(settings.get("batch_size", 65536), 1)
    into.samples = settings.get("metrics_num_samples", 2)
    into.window_ns = int(settings.get("metrics_sample_window_ms", 30000) * 1_000_000)
