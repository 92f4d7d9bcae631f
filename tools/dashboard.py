"""Writes the Grafana dashboard, deploy/grafana/cyproducer.json, with the classes of grafana-foundation-sdk."""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "cyproducer.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
#: The scrapes that are shown. It stands in each metric's selector.
CHOSEN = 'job=~"$job",instance=~"$instance"'
WIDTH, HEIGHT = 24, 8


class Panel(NamedTuple):
    """A panel: PromQL with `%` for the selector, and the legend of each curve. `width` is in columns of 24."""

    title: str
    description: str
    unit: str
    curves: tuple[tuple[str, str], ...]
    width: int = 8
    number: bool = False


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{%}}[$__rate_interval]))"


def failed(time: str) -> str:
    """Return the failed records of a time. A series begins with its first failures, which increase() does not count."""
    total = "cyproducer_failed_records_total{%}"
    return f"({total} - last_over_time({total}[1d] offset {time}) >= 0 or {total}) > 0"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Hosts": (
        Panel(
            "Records per second",
            "Records in batches that were sent, by host.",
            "short",
            ((rate("kafka_producer_record_send_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Failed records per second",
            "Records whose outcome is an error. The row Applications says which application, topic and cause.",
            "short",
            ((rate("kafka_producer_record_error_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Retried records per second",
            "Records that were sent again after an error.",
            "short",
            ((rate("kafka_producer_record_retry_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Time in the queue",
            "From send() until a batch is written to its broker, including linger_ms.",
            "ms",
            (
                ("max by (instance) (kafka_producer_record_queue_time_avg{%})", "{{instance}} average"),
                ("max by (instance) (kafka_producer_record_queue_time_max{%})", "{{instance}} longest"),
            ),
        ),
        Panel(
            "Memory in use",
            "The part of the shared memory for records that is in use. At 100 %, send() waits.",
            "percentunit",
            (
                (
                    "sum by (instance) (cyproducer_buffer_in_use_bytes{%}) / "
                    "sum by (instance) (cyproducer_buffer_memory_bytes{%})",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Senders",
            "One sender serves all processes of a user with the same settings for brokers. More than that are a "
            "difference of settings.",
            "short",
            (("count by (instance, version) (cyproducer_sender_info{%})", "{{instance}} {{version}}"),),
        ),
    ),
    "Applications": (
        Panel(
            "Attached processes",
            "Processes that use a sender, by application.",
            "short",
            (("sum by (app) (cyproducer_front_ends{%})", "{{app}}"),),
        ),
        Panel(
            "Oldest record",
            "The age of the oldest batch without an outcome. It fails after delivery_timeout_ms.",
            "s",
            (("max by (app) (cyproducer_oldest_record_age_seconds{%})", "{{app}}"),),
        ),
        Panel(
            "Memory in use by application",
            "The shared memory for records that is in use.",
            "bytes",
            (("sum by (app) (cyproducer_buffer_in_use_bytes{%})", "{{app}}"),),
        ),
        Panel(
            "Failed records by cause",
            "By Kafka's name of the error.",
            "short",
            (
                (
                    f"sum by (app, topic, cause) ({failed('$__rate_interval')}) > 0",
                    "{{app}} {{topic}} {{cause}}",
                ),
            ),
            width=16,
        ),
        Panel(
            "Transactional producers",
            "By phase: open, committing, aborting, ready, fatal.",
            "short",
            (("sum by (phase) (cyproducer_transactions{%})", "{{phase}}"),),
        ),
    ),
    "Brokers": (
        Panel(
            "Request latency",
            "From the first byte of a request to its answer, by broker.",
            "ms",
            (
                ("max by (node_id) (kafka_producer_node_request_latency_avg{%})", "{{node_id}} average"),
                ("max by (node_id) (kafka_producer_node_request_latency_max{%})", "{{node_id}} longest"),
            ),
        ),
        Panel(
            "Requests per second",
            "By broker.",
            "reqps",
            ((rate("kafka_producer_node_request_total", "node_id"), "{{node_id}}"),),
        ),
        Panel(
            "Bytes per second",
            "Bytes that are written to each broker.",
            "Bps",
            ((rate("kafka_producer_node_outgoing_byte_total", "node_id"), "{{node_id}}"),),
        ),
        Panel(
            "Connections",
            "By state. A sender that works has one in the state ready for each broker, and seldom more.",
            "short",
            (("sum by (state) (cyproducer_connections{%})", "{{state}}"),),
        ),
        Panel(
            "Throttle time",
            "The longest time for which a broker has throttled this client: a quota is reached.",
            "ms",
            (("max by (instance) (kafka_producer_produce_throttle_time_max{%})", "{{instance}}"),),
        ),
        Panel(
            "Failed logins per second",
            "TLS handshakes and SASL logins that have failed.",
            "short",
            ((rate("kafka_producer_failed_authentication_total", "instance"), "{{instance}}"),),
        ),
    ),
    "Topics": (
        Panel(
            "Records per second by topic",
            "Records in batches that were sent.",
            "short",
            ((rate("kafka_producer_topic_record_send_total", "topic"), "{{topic}}"),),
        ),
        Panel(
            "Bytes per second by topic",
            "Encoded bytes of the batches, before compression.",
            "Bps",
            ((rate("kafka_producer_topic_byte_total", "topic"), "{{topic}}"),),
        ),
        Panel(
            "Compression",
            "The size of compressed batches, as a part of their size before.",
            "percentunit",
            (("avg by (topic) (kafka_producer_topic_compression_rate{%})", "{{topic}}"),),
        ),
    ),
}
NUMBERS = (
    Panel("Records per second", "", "short", ((rate("kafka_producer_record_send_total", "job"), ""),), 6, True),
    Panel("Oldest record", "", "s", (("max by (job) (cyproducer_oldest_record_age_seconds{%})", ""),), 6, True),
    Panel(
        "Failed records in the last hour",
        "",
        "short",
        ((f"sum by (job) ({failed('1h')})", ""),),
        6,
        True,
    ),
    Panel(
        "Restarts in the last day",
        "",
        "short",
        (("sum by (job) (increase(cyproducer_sender_restarts_total{%}[1d]))", ""),),
        6,
        True,
    ),
)


def built(panel: Panel) -> Any:
    """Return the builder of the panel."""
    builder = stat.Panel() if panel.number else timeseries.Panel()
    builder.title(panel.title).unit(panel.unit).datasource(SOURCE).span(panel.width)
    builder.height(4 if panel.number else HEIGHT)
    if panel.description:
        builder.description(panel.description)
    if isinstance(builder, stat.Panel):
        builder.graph_mode(BigValueGraphMode.AREA)
    for number, (expression, legend) in enumerate(panel.curves):
        query = prometheus.Dataquery().expr(expression.replace("%", CHOSEN)).legend_format(legend)
        builder.with_target(query.ref_id(chr(ord("A") + number)))
    return builder


def variable(name: str, label: str, query: str) -> Any:
    """Return a variable with the values of a label, of which one can choose several."""
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True)
    return made.current(VariableOption(selected=True, text="All", value="$__all"))


def text() -> str:
    """Return the dashboard as JSON."""
    board = dashboard.Dashboard("cyproducer").uid("cyproducer").tags(["kafka", "cyproducer"])
    board.description("Kafka producers of all processes on each host, by the senders that they share.")
    board.refresh("30s").time("now-1h", "now").timezone("browser")
    board.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    board.with_variable(variable("job", "Job", "label_values(cyproducer_sender_info, job)"))
    board.with_variable(variable("instance", "Host", 'label_values(cyproducer_sender_info{job=~"$job"}, instance)'))
    for panel in NUMBERS:
        board.with_panel(built(panel))
    for title, panels in ROWS.items():
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(built(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    FILE.write_text(text())
