"""Lists the comparisons over TLS 1.3 with AES-256-GCM."""

from bench.comparisons import ARRAYS, Comparison, faster
from bench.goals import Goal
from bench.loads import Load

TIMES = 4
LARGE = (10_000, 100_000, 1_000_000)
SMALL = (100, 1000)
SPEED = ("rate", "gb_per_s", "cpu_us", "front_end_us", "sender_us", "broker_cores", "foreign_cores")

TLS_ROWS = (
    Comparison(
        "tls-send",
        "TLS: send() of 100 B and 1 kB, one process",
        "throughput",
        ("send", "confluent"),
        Load(tls=True, most_bytes=500_000_000),
        rounds=3,
        vary="value_bytes",
        points=SMALL,
        figures=SPEED,
        goals=(
            *faster("send", "confluent", TIMES, 100),
            Goal("send", "rate", least=1, against="confluent", point=1000),
        ),
    ),
    Comparison(
        "tls-arrays",
        "TLS: send_array(): fixed width, (data, offsets), Arrow",
        "throughput",
        (*ARRAYS, "confluent_batch"),
        Load(tls=True),
        rounds=3,
        figures=SPEED,
        goals=tuple(goal for ours in ARRAYS for goal in faster(ours, "confluent_batch", TIMES)),
    ),
    Comparison(
        "tls-large",
        "TLS: 10 kB, 100 kB, 1 MB values",
        "throughput",
        ("send", "confluent"),
        Load(tls=True, most_bytes=500_000_000, warmup=5_000),
        rounds=3,
        vary="value_bytes",
        points=LARGE,
        figures=SPEED,
        plot="gb_per_s",
        goals=tuple(Goal("send", "gb_per_s", least=1, against="confluent", point=size) for size in LARGE),
    ),
    Comparison(
        "tls-cost",
        "what TLS adds to send() of 10 kB values",
        "throughput",
        ("send", "confluent"),
        Load(value_bytes=10_000, most_bytes=500_000_000, warmup=5_000),
        rounds=3,
        vary="tls",
        points=(False, True),
        figures=("sender_ns_per_byte", *SPEED),
        plot="cpu_us",
    ),
    Comparison(
        "tls-calls",
        "one TLS connection: CPU of the sending side by the bytes of each call (without goals)",
        "tls_calls",
        ("plain_socket", "ssl_socket", "memory_bio", "ktls"),
        Load(tls=True, least_seconds=0.5),
        rounds=3,
        vary="value_bytes",
        points=(1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10),
        quick_points=(1 << 10, 64 << 10),
        figures=("ns_per_byte",),
        plot="ns_per_byte",
    ),
    Comparison(
        "tls-kafka",
        "TLS: one real broker, which shares the cores; values of 100 B, 1 kB and 100 kB",
        "throughput",
        ("send", "send_array", "confluent", "confluent_batch"),
        Load(tls=True, messages=500_000, warmup=50_000, most_bytes=200_000_000),
        broker="kafka",
        rounds=3,
        warm_rounds=1,
        vary="value_bytes",
        points=(*SMALL, 100_000),
        figures=SPEED,
        goals=(
            *faster("send", "confluent", TIMES, 100),
            *faster("send_array", "confluent_batch", TIMES, 100),
            Goal("send", "rate", least=1, against="confluent", point=1000),
            Goal("send", "gb_per_s", least=1, against="confluent", point=100_000),
        ),
    ),
    Comparison(
        "tls-workers-16",
        "TLS: 16 processes x 500 msg/s, 48 partitions, 3 real brokers, replication 3",
        "paced",
        ("none", "send", "confluent"),
        Load(tls=True, processes=16, rate=500, seconds=5, partitions=48, replication=3),
        broker="kafka3",
        rounds=3,
        warm_rounds=1,
        figures=(
            *("handshakes", "connections", "requests_per_s", "net_cpu_us", "broker_us", "cpu_us", "sender_us"),
            "foreign_cores",
        ),
        plot="net_cpu_us",
        goals=(Goal("send", "handshakes", most=3), Goal("send", "connections", most=3)),
    ),
)
