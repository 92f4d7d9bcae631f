"""The packages of the product: what each may import, and which tests it needs when it is changed.

`tests/style/test_layering.py` checks the imports, and `DESIGN.md` says what each package is for.
"""

from typing import NamedTuple


class Package(NamedTuple):
    """A package, or a module beside the packages.

    imports   the packages of ours that it may import besides itself; "api" is the package `cyproducer`
    tests     files and folders of tests/
    """

    imports: tuple[str, ...]
    tests: tuple[str, ...]


LEAVES = ("codes", "error_table", "errors", "config", "metric_table", "transaction_states", "types", "version")
MEMORY = ("shm", "host", "record")

#: By the dotted name without "cyproducer". Earlier lines are used by later ones.
PACKAGES = {
    "shm": Package((), ("unit/shm", "model", "integration/engine/test_takeover.py")),
    "host": Package(
        (*LEAVES, "shm", "record"),
        (
            *("unit/host", "unit/producer/test_attach_interrupted.py", "integration/sender/test_sender_process.py"),
            "versions",
        ),
    ),
    # These two hold Kafka's error codes and import nothing of ours.
    "protocol": Package(
        ("codes", "error_table"),
        ("unit/protocol", "integration/engine/test_engine_versions.py", "integration/build/test_kafka_jar.py"),
    ),
    "record": Package(("shm",), ("unit/record", "unit/producer", "simulation")),
    "security": Package(("protocol",), ("unit/security", "integration/security")),
    "producer.core": Package((*MEMORY, *LEAVES), ("unit/producer", "simulation", "usage/test_usage_sender_lost.py")),
    # Pickles of RecordMetadata name this package.
    "producer.results": Package(("producer.core",), ("unit/producer",)),
    "producer.extensions": Package(
        (*LEAVES, "shm", "producer.core"), ("unit/producer", "integration/producer/test_extensions_kafka.py")
    ),
    "producer.tokens": Package(
        (*MEMORY, *LEAVES, "security", "producer.core"),
        ("unit/producer/test_token_supplier.py", "integration/security/test_token_provider.py"),
    ),
    "producer.channel": Package(
        (*MEMORY, *LEAVES, "producer.core", "producer.tokens"),
        (
            *("unit/producer", "integration/sender/test_sender_process.py"),
            *("usage/test_usage_asyncio.py", "usage/test_usage_interrupts.py"),
        ),
    ),
    "producer.transactions": Package(
        (*MEMORY, *LEAVES, "producer.core", "producer.channel"),
        ("unit/producer", "integration/transactions", "transactional", "cancelled"),
    ),
    "producer": Package(
        (
            *MEMORY,
            *LEAVES,
            "producer.core",
            "producer.extensions",
            "producer.channel",
            "producer.transactions",
        ),
        ("unit/producer", "arrays", "integration/producer", "usage"),
    ),
    "sender.system": Package(
        (*LEAVES, "host", "observe"), ("unit/sender", "integration/sender/test_limited_sender.py")
    ),
    "sender.engine": Package((*MEMORY, *LEAVES, "protocol"), ("integration/engine", "simulation")),
    "sender.telemetry": Package(
        (*LEAVES, "host", "protocol", "record", "sender.system"),
        ("unit/sender", "integration/engine/test_engine_telemetry.py", "integration/producer/test_telemetry_kafka.py"),
    ),
    "sender.cluster": Package(
        (
            *MEMORY,
            *LEAVES,
            "protocol",
            "security",
            "sender.system",
            "sender.engine",
            "sender.telemetry",
        ),
        ("unit/sender", "integration/engine", "simulation"),
    ),
    "sender.handover": Package(
        (*MEMORY, *LEAVES, "sender.system", "observe"), ("unit/sender", "integration/sender/test_sender_upgrade.py")
    ),
    "sender.control": Package(
        (
            *MEMORY,
            *LEAVES,
            "sender.system",
            "sender.engine",
            "sender.cluster",
            "sender.handover",
            "observe",
        ),
        ("unit/sender", "integration/sender"),
    ),
    "sender.process": Package(
        (
            *MEMORY,
            *LEAVES,
            "sender.system",
            "sender.engine",
            "sender.cluster",
            "sender.handover",
            "sender.control",
            "observe",
        ),
        ("unit/sender", "integration/sender"),
    ),
    "sender": Package((), ("integration/sender",)),
    # A sender reports its status on its control socket.
    "observe": Package((*LEAVES, "shm", "host"), ("unit/observe", "integration/cli")),
    # Besides the public API: transactions of several processes, Kafka's partitioner, questions about transactions,
    # where the processes of a host meet, and the clocks.
    "spark": Package((*LEAVES, "shm", "host", "producer.core", "producer", "observe", "api"), ("spark",)),
    # What a producer and its sender use to find each other, and to connect to brokers.
    "doctor": Package(
        (*LEAVES, "shm", "host", "security", "observe", "producer.channel"), ("unit/cli", "integration/cli")
    ),
    "cli": Package((*LEAVES, "observe", "doctor", "spark", "foreground", "api"), ("unit/cli", "integration/cli")),
    # What PyInstaller runs, and what the programs run that it makes.
    "pyinstaller": Package(("sender.process", "api"), ("integration/build/test_pyinstaller.py",)),
    # A public module: a sender run in the caller's own process.
    "foreground": Package(
        (*LEAVES, "shm", "host", "sender.system", "sender.process"), ("integration/cli/test_cli_sender.py",)
    ),
    # A public module: what a consumer must know of open transactions.
    "group_offsets": Package((*LEAVES, "producer", "observe"), ("unit/producer", "integration/transactions")),
    # A public module: a stand-in for the tests of applications.
    "testing": Package(("api",), ("unit/tools",)),
    "opentelemetry": Package(("errors", "types"), ("usage/test_usage_tracing.py",)),
    "logging": Package(("errors", "shm", "api"), ("usage/test_usage_logging.py",)),
    "unsupported": Package((*LEAVES,), ("usage/test_usage_import.py",)),
    "codes": Package((), ("unit/test_errors.py",)),
    "error_table": Package((), ("unit/test_errors.py", "integration/build/test_kafka_jar.py")),
    "metric_table": Package((), ("integration/producer/test_metrics_kafka.py",)),
    "transaction_states": Package((), ("unit/sender", "unit/producer", "integration/engine")),
    "errors": Package(("error_table",), ("unit/test_errors.py",)),
    "config": Package((*LEAVES,), ("unit/config", "integration/producer/test_settings_at_their_ends.py")),
    "types": Package((), ("unit/test_stubs.py",)),
    "version": Package((), ("unit/tools",)),
    # The package itself gathers the public names; it is no implementation.
    "api": Package(
        (*LEAVES, "producer.core", "producer.channel", "producer", "unsupported"),
        ("unit/test_stubs.py", "usage/test_usage_import.py"),
    ),
    "__main__": Package(("cli",), ("integration/cli",)),
    "pyspark_cyproducer": Package(("spark",), ("spark",)),
}


def package_of(module: str) -> str:
    """Return the package that has an entry, of a dotted module name that begins with `cyproducer`."""
    parts = module.split(".")
    if parts[0] == "pyspark_cyproducer":
        return parts[0]
    names = (".".join(parts[1:end]) for end in range(len(parts), 1, -1))
    return next((name for name in names if name in PACKAGES), "api")


def users_of(package: str) -> list[str]:
    """Return the packages that may import a package, without itself."""
    return [name for name, each in PACKAGES.items() if package in each.imports]
