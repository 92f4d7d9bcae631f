"""Judges a finished schedule: one outcome for each record, the log, the order, and the memory of the sender."""

from collections import defaultdict

from kfake.partition_log import PartitionLog

from cyproducer import errors
from simulation.broker import SimulatedCluster
from simulation.front_end import FrontEnd, Sent

#: Errors that say nothing about the log: the record may be there once.
UNKNOWN = (errors.OutcomeUnknownError, errors.UnknownError)


class Oracle:
    """Compares what the front-ends were told with what the logs of the cluster have.

    exact: the records are sent with idempotence, so nothing is twice, reordered or lost.
    """

    def __init__(self, cluster: SimulatedCluster, front_ends: list[FrontEnd], exact: bool) -> None:
        self.cluster = cluster
        self.front_ends = front_ends
        self.exact = exact
        self.outcomes: dict[str, int] = defaultdict(int)
        self._places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)  # value: (log, offset)
        self._logs = [(name, index, log) for name, index, log in cluster.former]
        for topic in cluster.topics.values():
            if topic.exists:
                self._logs += [(topic.name, index, p) for index, p in enumerate(topic.partitions)]
        for number, (_, _, log) in enumerate(self._logs):
            for offset, value in log.entries():
                self._places[value].append((number, offset))

    def check(self) -> list[str]:
        """Return every broken rule."""
        found = list(self.cluster.complaints)
        for front_end in self.front_ends:
            if not front_end.dead and front_end.tape is not None:
                front_end.tape.read()
                front_end.tape.check()
            for sent in front_end.sent:
                found += self._judge(front_end, sent)
        if self.exact:
            found += self._order()
        return found

    def _judge(self, front_end: FrontEnd, sent: Sent) -> list[str]:
        places = self._places.get(sent.value, [])
        name = sent.value[:20].decode()
        logs = {number for number, _ in places}
        if self.exact and len(places) != len(logs):
            return [f"{name} is twice in a log: {places}"]
        if self.exact and len(places) > 1:
            self.outcomes["in two logs of a topic that was deleted"] += 1
        if front_end.dead:
            self.outcomes["of a dead front-end"] += 1
            return []
        error = sent.future.exception(timeout=0)
        self.outcomes["acknowledged" if error is None else type(error).__name__] += 1
        if error is None:
            return self._judge_acknowledged(sent, name, places)
        is_exact = (
            self.exact and front_end.transactions is None
        )  # what a failed transaction has sent is never committed
        if not isinstance(error, UNKNOWN) and places and is_exact:
            return [f"{name} failed with {type(error).__name__} ({error}) and is in a log: {places}"]
        return []

    def _judge_acknowledged(self, sent: Sent, name: str, places: list[tuple[int, int]]) -> list[str]:
        metadata = sent.future.result(timeout=0)
        if not self.exact:
            return []
        if not places:
            return [f"{name} was acknowledged at {metadata.partition}:{metadata.offset} and is in no log"]
        if metadata.offset < 0:
            return []
        there = [(self._logs[number][1], offset) for number, offset in places]
        if (metadata.partition, metadata.offset) not in there:
            return [f"{name} was acknowledged at {metadata.partition}:{metadata.offset} and is at {there}"]
        return []

    def _order(self) -> list[str]:
        found = []
        for topic, index, log in self._logs:
            newest: dict[int, int] = {}
            headless = _headless(log)
            for offset, value in log.entries():
                if offset in headless:
                    continue
                front_end, number, _ = value.split(b".", 2)
                key = int(front_end)
                if int(number) < newest.get(key, -1):
                    found.append(f"{topic}-{index} has {key}.{int(number)} at {offset}, behind {key}.{newest[key]}")
                newest[key] = int(number)
        return found


def _headless(log: PartitionLog) -> set[int]:
    """Return the offsets of the batches of producer epochs that begin in the log with a sequence above 0.

    A batch was refused, the topic was created again, and the new log took the batch behind it as its first one. The
    refused one comes later then. No producer can prevent that (DESIGN.md, "Refused batches and sequences").
    """
    found: set[int] = set()
    began: dict[tuple[int, int], int] = {}
    for batch in log.batches:
        if batch.marker or batch.producer_id < 0:
            continue
        if began.setdefault((batch.producer_id, batch.epoch), batch.first):
            found.update(range(batch.offset, batch.end))
    return found
