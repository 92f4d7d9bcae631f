"""Lists the comparisons by name, each with its contestants, its load and its goals."""

from dataclasses import dataclass, field, replace
from typing import Any

from bench.goals import Goal
from bench.loads import Load

USUAL = Load()


@dataclass(frozen=True)
class Comparison:
    """A comparison of contestants.

    warm_rounds  uncounted rounds at the start, in which the JVM of a real broker compiles
    measure      the measurement: "throughput", "paced", "latency", "memory" (see bench.work), "start", "idle",
                 "recovery", "disturbance", "calls", "tls_calls", "spark"
    vary         the field of the load that takes each value of `points`
    quick_...    the values for a quick run, if there are fewer
    figures      the figures in the report
    plot         the figure that is drawn over the points, or as bars
    limits       the physical limits that are drawn as lines in the plot
    """

    name: str
    title: str
    measure: str
    contestants: tuple[str, ...]
    load: Load = USUAL
    broker: str = "null"
    rounds: int = 5
    warm_rounds: int = 0
    goals: tuple[Goal, ...] = ()
    vary: str | None = None
    points: tuple[Any, ...] = (None,)
    quick_points: tuple[Any, ...] = ()
    quick_contestants: tuple[str, ...] = ()
    figures: tuple[str, ...] = ("rate", "cpu_us", "front_end_us", "sender_us", "broker_us", "foreign_cores")
    plot: str | None = "cpu_us"
    limits: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    growth: bool = False

    @property
    def uses_tls(self) -> bool:
        """Whether a load of it uses TLS."""
        return any(self.load_at(point).tls for point in self.points)

    def load_at(self, point: Any) -> Load:
        """Return the load at a point."""
        return self.load if self.vary is None else replace(self.load, **{self.vary: point})


def faster(ours: str, theirs: str, times: float, point: Any = None) -> tuple[Goal, Goal]:
    """Return two goals: `times` the messages per second, and 1 / `times` of the CPU per message."""
    return (
        Goal(ours, "rate", least=times, against=theirs, point=point),
        Goal(ours, "cpu_us", most=1 / times, against=theirs, point=point),
    )


# Each process warms up with 20,000 records.
MANY = Load(messages=2_560_000, warmup=1_280_000, processes=64)
ARRAYS = ("send_array", "send_array_offsets", "send_arrow")
SIZES = (1_000, 10_000, 100_000, 1_000_000)
DISTURBED = ("settled_times", "settled_p99_ms", "disturbed_p50_ms", "undisturbed_p50_ms", "refused")
CALL_LIMITS = ("cython_call_us", "encode_us", "crc32c_us", "loopback_us")

ROWS = (
    Comparison(
        "send",
        "send(), result ignored, one process; keyed (16 B); two headers",
        "throughput",
        (
            *("send", "confluent", "send_keyed", "confluent_keyed", "send_headers", "confluent_headers"),
            *("kafka_python", "aiokafka", "java"),
        ),
        goals=(
            *faster("send", "confluent", 7),
            *faster("send_keyed", "confluent_keyed", 7),
            *faster("send_headers", "confluent_headers", 7),
        ),
        limits=CALL_LIMITS,
    ),
    Comparison(
        "results",
        "send(), results read",
        "throughput",
        ("send_kept", "confluent_callback"),
        goals=faster("send_kept", "confluent_callback", 6),
        limits=CALL_LIMITS,
    ),
    Comparison(
        "delivery",
        "send() with on_delivery",
        "throughput",
        ("send_delivery", "confluent_callback"),
        goals=faster("send_delivery", "confluent_callback", 5),
        limits=CALL_LIMITS,
    ),
    Comparison(
        "processes-4",
        "4 processes",
        "throughput",
        ("send", "confluent"),
        Load(messages=2_000_000, warmup=400_000, processes=4),
        goals=faster("send", "confluent", 6),
        limits=CALL_LIMITS,
    ),
    Comparison(
        "processes-64",
        "64 processes",
        "throughput",
        ("send", "confluent"),
        MANY,
        rounds=3,
        goals=faster("send", "confluent", 5),
        limits=CALL_LIMITS,
    ),
    Comparison(
        "arrays",
        "send_array(): fixed width, (data, offsets), Arrow",
        "throughput",
        (*ARRAYS, "confluent_batch", "aiokafka_batch"),
        goals=tuple(
            goal
            for ours in ARRAYS
            for goal in (
                Goal(ours, "rate", least=20, against="confluent_batch"),
                Goal(ours, "rate", least=12, against="aiokafka_batch"),
                Goal(ours, "cpu_us", most=0.05),
                Goal(ours, "rate", least=15e6),
            )
        ),
        limits=("encode_us", "crc32c_us", "loopback_us"),
    ),
    Comparison(
        "keys-1000",
        "random keys over 1,000 partitions",
        "throughput",
        ("send_keyed", "confluent_keyed"),
        Load(partitions=1000),
        goals=faster("send_keyed", "confluent_keyed", 8),
        limits=CALL_LIMITS,
    ),
    Comparison(
        "compression",
        "lz4 and zstd, text-like 1 kB values",
        "throughput",
        ("send", "confluent"),
        Load(messages=200_000, warmup=20_000, value_bytes=1000, text=True),
        vary="compression",
        points=("lz4", "zstd"),
        figures=("rate", "cpu_us", "gb_per_s", "bytes_per_record", "front_end_us", "sender_us", "foreign_cores"),
        goals=tuple(
            goal
            for codec in ("lz4", "zstd")
            for goal in (
                Goal("send", "rate", least=1.5, against="confluent", point=codec),
                Goal("send", "bytes_per_record", most=1.05, against="confluent", point=codec),
                # The part of the codec in the CPU of all processes, whatever their number: the rest is our own cost.
                Goal("send", "cpu_us", least=0.7, limit=f"{codec}_us", part=True, point=codec),
                # The most that a client with one process can reach.
                Goal("send", "rate", least=1.0, limit=f"{codec}_rate", point=codec),
            )
        ),
        limits=("lz4_us", "zstd_us"),
    ),
    Comparison(
        "kafka-partitions",
        "one real broker, which shares the cores: 1, 6 and 48 partitions; the default of batch_size and 1 MiB",
        "throughput",
        (*("send", "send_mebibyte", "confluent"), *("send_keyed", "send_keyed_mebibyte", "confluent_keyed")),
        Load(messages=2_000_000, warmup=400_000),
        broker="kafka",
        warm_rounds=1,
        vary="partitions",
        points=(1, 6, 48),
        plot="rate",
        goals=tuple(
            Goal(ours, "rate", least=0.85, against=f"{ours}_mebibyte", point=partitions)
            for partitions in (1, 6, 48)
            for ours in ("send", "send_keyed")
        ),
    ),
    Comparison(
        "workers-16",
        "16 processes x 500 msg/s, 48 partitions, 3 real brokers, replication 3; unkeyed and keyed",
        "paced",
        ("none", "send", "confluent", "send_keyed", "confluent_keyed"),
        Load(processes=16, rate=500, seconds=5, partitions=48, replication=3),
        quick_contestants=("none", "send", "confluent"),
        broker="kafka3",
        rounds=3,
        warm_rounds=1,
        figures=(
            *("net_cpu_us", "broker_us", "net_broker_us", "requests_per_s", "connections", "cpu_us", "sender_us"),
            *("sender_wake_ups_per_s", "foreign_cores"),
        ),
        plot="net_cpu_us",
        goals=tuple(
            goal
            for ours, theirs in (("send", "confluent"), ("send_keyed", "confluent_keyed"))
            for goal in (
                Goal(ours, "requests_per_s", most=700),
                Goal(ours, "connections", most=3),
                Goal(ours, "net_cpu_us", most=0.1, against=theirs),
                Goal(ours, "broker_us", most=0.25, against=theirs),
            )
        ),
    ),
    Comparison(
        "latency",
        "send to acknowledged, linger 0, 1,000 msg/s; alone and with 16 other busy processes",
        "latency",
        ("send_kept", "confluent_callback"),
        Load(rate=1000, seconds=4, linger_ms=0),
        rounds=3,
        vary="busy",
        points=(0, 16),
        figures=("p50_us", "p99_us", "p999_us", "cpu_us", "foreign_cores"),
        plot="p50_us",
        goals=(
            Goal("send_kept", "p50_us", most=0.9, against="confluent_callback", point=0),
            Goal("send_kept", "p99_us", most=1.0, against="confluent_callback", point=0),
        ),
    ),
    Comparison(
        "sizes",
        "1 kB, 10 kB, 100 kB, 1 MB values",
        "throughput",
        ("send", "confluent"),
        Load(most_bytes=1_000_000_000, warmup=20_000),
        rounds=3,
        vary="value_bytes",
        points=SIZES,
        figures=("gb_per_s", "rate", "cpu_us", "front_end_us", "sender_us", "foreign_cores"),
        plot="gb_per_s",
        goals=tuple(
            Goal(
                "send",
                "gb_per_s",
                least=2,
                against="confluent",
                point=size,
                otherwise=Goal("send", "gb_per_s", least=0.8, limit="loopback_gb_per_s", point=size),
            )
            for size in SIZES
        ),
        limits=("loopback_gb_per_s",),
    ),
    Comparison(
        "spark",
        "Spark batch, 5 M rows, local[2], real broker",
        "spark",
        ("spark_cyproducer", "spark_kafka", "spark_noop_arrow", "spark_noop"),
        Load(messages=5_000_000),
        broker="kafka",
        rounds=3,
        plot="rate",
        goals=(
            Goal(
                "spark_cyproducer",
                "rate",
                least=2,
                against="spark_kafka",
                otherwise=Goal("spark_cyproducer", "rate", least=0.7, against="spark_noop_arrow"),
            ),
        ),
    ),
    Comparison(
        "spark-exactly-once",
        "one micro-batch of 2 M rows, exactly once and at least once, local[2], real broker",
        "spark",
        ("spark_exactly_once", "spark_write"),
        Load(messages=2_000_000),
        broker="kafka",
        rounds=5,
        figures=("rate", "job_ms", "cpu_us", "front_end_us", "sender_us", "broker_us", "foreign_cores"),
        plot="rate",
        goals=(Goal("spark_exactly_once", "rate", least=0.8, against="spark_write"),),
    ),
    Comparison(
        "spark-micro-batch",
        "one micro-batch of 1,000 rows, exactly once and at least once, local[2], real broker",
        "spark",
        ("spark_exactly_once", "spark_write"),
        Load(messages=1_000),
        broker="kafka",
        rounds=5,
        figures=("job_ms", "foreign_cores"),
        plot="job_ms",
    ),
    Comparison(
        "memory",
        "memory (PSS) and threads of a front-end at rest and at 100,000 msg/s, with 12 and 1,000 partitions",
        "memory",
        ("send_keyed", "confluent_keyed"),
        Load(rate=100_000, seconds=2),
        rounds=3,
        vary="partitions",
        points=(12, 1000),
        figures=("rest_mb", "load_mb", "rest_threads", "load_threads", "cpu_us"),
        plot="load_mb",
        goals=tuple(
            goal
            for partitions in (12, 1000)
            for goal in (
                Goal("send_keyed", "rest_mb", most=8, point=partitions),
                Goal("send_keyed", "load_mb", most=8, point=partitions),
                Goal("send_keyed", "rest_threads", most=0, point=partitions),
                Goal("send_keyed", "load_threads", most=0, point=partitions),
            )
        ),
    ),
    Comparison(
        "start",
        "import and first record acknowledged with a running sender",
        "start",
        ("send_kept", "confluent_callback"),
        rounds=10,
        figures=("first_ms",),
        plot="first_ms",
        goals=(Goal("send_kept", "first_ms", most=1, against="confluent_callback"),),
    ),
    Comparison(
        "recovery",
        "attach, reclaim and restart (no comparison with other clients)",
        "recovery",
        ("send",),
        rounds=3,
        figures=(
            *("forked_p50_ms", "forked_p99_ms", "fresh_p50_ms", "fresh_p99_ms"),
            *("reclaim_p50_ms", "reclaim_p99_ms", "restart_p50_ms", "restart_p99_ms"),
        ),
        plot="forked_p50_ms",
        goals=(
            Goal("send", "forked_p50_ms", most=2),
            Goal("send", "forked_p99_ms", most=10),
            Goal("send", "fresh_p50_ms", most=2),
            Goal("send", "fresh_p99_ms", most=10),
            Goal("send", "reclaim_p50_ms", most=5),
            Goal("send", "restart_p99_ms", most=1000),
        ),
    ),
    *(
        Comparison(
            name,
            f"p99 beside {what} (no comparison with other clients)",
            "disturbance",
            ("send",),
            Load(disturbance=name, rate=100, seconds=30, partitions=1),
            broker="kafka3",
            rounds=3,
            figures=("disturbed_times", "disturbed_p99_ms", "undisturbed_p99_ms", *DISTURBED),
            plot="disturbed_times",
            goals=(Goal("send", "disturbed_times", most=2),),
        )
        for name, what in (
            ("slow-follower", "partitions whose follower is slow"),
            ("poison-neighbour", "a front-end whose records are refused"),
        )
    ),
    *(
        Comparison(
            name,
            f"transactions of 100 and of 10,000 records, one producer, {what}",
            "throughput",
            ("send_transactions", "confluent_transactions", *others),
            Load(messages=messages, warmup=20_000, transaction=100, least_seconds=3, replication=replication),
            broker=broker,
            rounds=5,
            warm_rounds=2,
            vary="transaction",
            points=(100, 10_000),
            plot="rate",
            goals=tuple(
                Goal("send_transactions", "rate", least=3, against="confluent_transactions", point=point)
                for point in (100, 10_000)
            ),
        )
        for name, what, broker, replication, messages, others in (
            ("transactions", "one real broker", "kafka", 1, 200_000, ("bare_transactions",)),
            ("transactions-replicated", "three real brokers, replication 3", "kafka3", 3, 20_000, ()),
        )
    ),
    Comparison(
        "transaction-latency",
        "begin to commit of a transaction of one record, one real broker",
        "latency",
        ("send_transactions", "confluent_transactions", "bare_transactions"),
        Load(rate=20, seconds=5, transaction=1),
        broker="kafka",
        rounds=5,
        warm_rounds=2,
        figures=("p50_us", "p99_us", "cpu_us"),
        plot="p50_us",
        goals=(Goal("send_transactions", "p50_us", most=1, against="confluent_transactions"),),
    ),
    Comparison(
        "transactions-8",
        "transactions of one record, eight producers in processes of their own, one real broker",
        "throughput",
        ("send_transactions", "confluent_transactions"),
        Load(messages=4000, warmup=1600, transaction=1, processes=8, least_seconds=4, most_bytes=1 << 20),
        broker="kafka",
        rounds=5,
        warm_rounds=1,
        figures=("rate", "cpu_us", "front_end_us", "sender_us", "broker_us", "foreign_cores"),
        plot="rate",
        goals=(Goal("send_transactions", "rate", least=1.5, against="confluent_transactions"),),
    ),
    Comparison(
        "calls",
        "the call of send() alone, the loop included (without goals)",
        "calls",
        (
            *("loop", "python_method", "send", "send value=", "send value= key=", "send value= key= headers="),
            *("send kept", "send kept value= key=", "send kept value= key= headers="),
        ),
        rounds=15,
        figures=("ns",),
        plot="ns",
    ),
    Comparison(
        "kafka",
        "one real broker, which shares the cores: compare the CPU (without goals)",
        "throughput",
        ("send", "send_array", "confluent", "confluent_callback", "kafka_python", "aiokafka", "java"),
        Load(messages=500_000, warmup=50_000),
        broker="kafka",
        rounds=3,
    ),
)
