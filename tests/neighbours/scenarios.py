"""Lists the scenarios: noisy front-ends or sick brokers, beside a measured front-end on a healthy broker."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """`sick` of `nodes` brokers get the sickness when the noise begins; the measured front-end's broker is the last.

    noise: the arguments of each noisy process (noise.py), without the socket. sickness: a command of node.py, "frozen"
    (SIGSTOP), or "black-holed": stopped, and no new connection is accepted. A "short" broker may be the measured
    front-end's. budget_ms: by how much its 99th percentile may be longer than alone.
    """

    text: str
    noise: tuple[tuple[object, ...], ...]
    nodes: int = 1
    partitions: int = 3
    sick: tuple[int, ...] = ()
    sickness: str = ""
    budget_ms: float = 50.0


def _sick(text: str, sickness: str, partitions: int, sick: tuple[int, ...] = (1, 2, 3, 4)) -> Scenario:
    noise = (("everywhere", partitions, 100, 0.3, 4),)
    return Scenario(text, noise, 5, partitions, sick, sickness, budget_ms=100.0)


SCENARIOS: dict[str, Scenario] = {
    "frozen": _sick("4 of 5 brokers are stopped; another front-end writes to all of 5,120 partitions", "frozen", 5120),
    "hang": _sick("4 of 5 brokers answer all but Produce; 5,120 partitions", "hang", 5120),
    "black-holed": _sick("4 of 5 brokers are out of reach, without a reset; 500 partitions", "black-holed", 500),
    "short": _sick(
        "all of 5 brokers are short of replicas, but for one partition; 8,000 of them", "short", 8000, (1, 2, 3, 4, 5)
    ),
    "hog": Scenario(
        "a backlog of 10 kB records in 2,000 partitions of the same broker",
        (("everywhere", 2001, 10_000, 0.0, 0),),
        partitions=2001,
    ),
    "small-hog": Scenario(
        "a backlog in one partition of the same broker", (("everywhere", 2, 10_000, 0.0, 0),), partitions=2
    ),
    "idle": Scenario("1,000 idle front-ends", (("idle", 250),) * 4),
    "arenas": Scenario("one comes and goes with a buffer_memory of 1 GiB", (("come_and_go", 1024),)),
    "wants": Scenario("one asks for metadata in a loop, beside 1,000 topics", (("want", 1000),)),
    "topics": Scenario("two begin to use 5,000 topics each", (("many_topics", 5000, 0), ("many_topics", 5000, 5000))),
}
