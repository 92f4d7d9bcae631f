"""Lists the figures of measurements with their labels, units and formats."""

from typing import NamedTuple


class Figure(NamedTuple):
    """The display of a figure. A stored value multiplied by `factor` has the unit `unit`."""

    label: str
    unit: str
    form: str = "{:.2f}"
    factor: float = 1.0


FIGURES: dict[str, Figure] = {
    "rate": Figure("messages per second", "M/s", "{:.3g}", 1e-6),
    "cpu_us": Figure("CPU per message, all processes of the client", "us", "{:.3g}"),
    "net_cpu_us": Figure("CPU per message without the load's own loop", "us", "{:.3g}"),
    "front_end_us": Figure("part of the front-ends", "us", "{:.3g}"),
    "sender_us": Figure("part of sender and supervisor", "us", "{:.3g}"),
    "broker_us": Figure("the brokers' CPU per message", "us", "{:.3g}"),
    "broker_cores": Figure("cores used by the brokers", "", "{:.2f}"),
    "sender_ns_per_byte": Figure("CPU of the sender per byte of a value", "ns", "{:.3g}"),
    "ns_per_byte": Figure("the sending side's CPU per byte", "ns", "{:.3g}"),
    "net_broker_us": Figure("the brokers' CPU per message without that of idle brokers", "us", "{:.3g}"),
    "foreign_cores": Figure("cores used by other processes", "", "{:.2f}"),
    "gb_per_s": Figure("values per second", "GB/s", "{:.3g}"),
    "bytes_per_record": Figure("bytes per record on the wire", "B", "{:.1f}"),
    "requests_per_s": Figure("Produce requests per second", "1/s", "{:,.0f}"),
    "connections": Figure("connections", "", "{:.0f}"),
    "handshakes": Figure("TLS handshakes that the brokers completed, from the start of the clients", "", "{:.0f}"),
    "sender_wake_ups_per_s": Figure("wake-ups of the sender per second", "1/s", "{:,.0f}"),
    "p50_us": Figure("send to acknowledged, p50", "us", "{:,.0f}"),
    "p99_us": Figure("send to acknowledged, p99", "us", "{:,.0f}"),
    "p999_us": Figure("send to acknowledged, p99.9", "us", "{:,.0f}"),
    "rest_mb": Figure("memory (PSS) that it adds, at rest", "MB", "{:.1f}"),
    "load_mb": Figure("memory (PSS) that it adds, under load", "MB", "{:.1f}"),
    "rest_threads": Figure("threads that it adds, at rest", "", "{:.0f}"),
    "load_threads": Figure("threads that it adds, under load", "", "{:.0f}"),
    "first_ms": Figure("import to first record acknowledged", "ms", "{:.1f}"),
    "idle_wake_ups_per_s": Figure("wake-ups per second of idle front-ends", "1/s", "{:.2f}"),
    "idle_sender_wake_ups_per_s": Figure("wake-ups per second of the idle sender", "1/s", "{:.2f}"),
    "idle_supervisor_wake_ups_per_s": Figure("wake-ups per second of the supervisor", "1/s", "{:.2f}"),
    "attach_ms": Figure("time to attach a front-end", "ms", "{:.2f}"),
    "forked_p50_ms": Figure("first send() of a forked worker, p50", "ms", "{:.2f}"),
    "forked_p99_ms": Figure("first send() of a forked worker, p99", "ms", "{:.2f}"),
    "fresh_p50_ms": Figure("first send() of a new process, p50", "ms", "{:.2f}"),
    "fresh_p99_ms": Figure("first send() of a new process, p99", "ms", "{:.2f}"),
    "reclaim_p50_ms": Figure("kill -9 of a front-end until its memory is reclaimed, p50", "ms", "{:.2f}"),
    "reclaim_p99_ms": Figure("kill -9 of a front-end until its memory is reclaimed, p99", "ms", "{:.2f}"),
    "restart_p50_ms": Figure("kill -9 of the sender to the next acknowledgement, p50", "ms", "{:.1f}"),
    "restart_p99_ms": Figure("kill -9 of the sender to the next acknowledgement, p99", "ms", "{:.1f}"),
    "job_ms": Figure("time of a job", "ms", "{:,.0f}"),
    "undisturbed_p99_ms": Figure("send to acknowledged, p99, undisturbed", "ms", "{:.1f}"),
    "undisturbed_p50_ms": Figure("send to acknowledged, p50, undisturbed", "ms", "{:.1f}"),
    "disturbed_p99_ms": Figure("send to acknowledged, p99, disturbed", "ms", "{:.1f}"),
    "disturbed_p50_ms": Figure("send to acknowledged, p50, disturbed", "ms", "{:.1f}"),
    "disturbed_times": Figure("p99 disturbed / undisturbed", "", "{:.2f}"),
    "settled_p99_ms": Figure("p99, disturbed for more than a second", "ms", "{:.1f}"),
    "settled_times": Figure("p99 disturbed for more than a second / undisturbed", "", "{:.2f}"),
    "refused": Figure("records of the neighbour that were refused", "", "{:,.0f}"),
    "ns": Figure("the caller's CPU per call, loop included", "ns", "{:.0f}"),
}
"""The figures that the report shows. `messages` and `seconds` are stored as well."""


def shown(name: str, value: float, unit: bool = True) -> str:
    """Return a value as the report prints it."""
    figure = FIGURES[name]
    text = figure.form.format(value * figure.factor)
    return f"{text} {figure.unit}".strip() if unit else text
