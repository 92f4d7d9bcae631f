"""Judges the transactions of a finished schedule: what a reader of committed records gets, and what the ids became."""

from collections import Counter, defaultdict

from simulation.broker import SimulatedCluster
from simulation.front_end import FrontEnd, Sent
from simulation.transactions import ABORTED, COMMITTED, SERIOUS, SOURCE, UNKNOWN, Transaction, Transactions


class TransactionOracle:
    """Compares the transactions of the front-ends with the committed records and offsets of the cluster.

    A committed transaction is there once and whole, an aborted one is not. One whose commit has no known result, since
    its front-end has died for example, is there once and whole or not at all.
    """

    def __init__(self, cluster: SimulatedCluster, front_ends: list[FrontEnd]) -> None:
        self._cluster = cluster
        self._front_ends = [each for each in front_ends if each.transactions is not None]
        self.fates: Counter[str] = Counter()
        present = [p for topic in cluster.topics.values() if topic.exists for p in topic.partitions]
        former = [log for _, _, log in cluster.former]
        self._seen: Counter[bytes] = Counter()
        for log in (*present, *former):
            self._seen.update(set(log.committed()))
        self._twice = [value for log in present for value, count in Counter(log.committed()).items() if count > 1]
        #: What was in a topic that was deleted may have been read before.
        self._gone = {value for log in former for _, value in log.entries()}

    def check(self) -> list[str]:
        """Return every broken rule."""
        found = [f"{value[:20].decode()} can be read twice in a log" for value in self._twice]
        ids: dict[str, list[FrontEnd]] = defaultdict(list)
        for front_end in self._front_ends:
            assert front_end.transactions is not None
            found += front_end.transactions.defects
            ids[front_end.transactions.name].append(front_end)
            for transaction in front_end.transactions.all:
                self.fates[transaction.fate] += 1
                found += self._judge(front_end, transaction)
            found += self._judge_offsets(front_end.transactions)
        for front_end in self._front_ends:
            assert front_end.transactions is not None
            found += self._judge_failure(front_end.transactions, len(ids[front_end.transactions.name]) > 1)
        return found + self._judge_ids(list(ids))

    def _judge(self, front_end: FrontEnd, transaction: Transaction) -> list[str]:
        name = f"transaction {front_end.number}.{transaction.number} ({transaction.fate})"
        present = [sent for sent in transaction.sent if self._seen[sent.value]]
        absent = [sent for sent in transaction.sent if not self._seen[sent.value] and sent.value not in self._gone]
        if transaction.fate == ABORTED and present:
            return [f"{name}: {_names(present)} can be read"]
        if transaction.fate == COMMITTED:
            if absent:
                return [f"{name}: {_names(absent)} cannot be read"]
            failed = [] if front_end.dead else [s for s in transaction.sent if s.future.exception(timeout=0)]
            if failed:
                return [f"{name}: {_names(failed)} have failed"]
        if transaction.fate == UNKNOWN and present and absent:
            return [f"{name}: {_names(present)} can be read, {_names(absent)} cannot"]
        return []

    def _judge_offsets(self, transactions: Transactions) -> list[str]:
        allowed: set[int | None] = {None}
        for transaction in transactions.all:
            if transaction.has_offset and transaction.fate != ABORTED:
                allowed = {transaction.number} | (allowed if transaction.fate == UNKNOWN else set())
        found = self._cluster.coordinators.transactions.ids.get(transactions.name)
        offset = None if found is None else found.offsets.get((transactions.group, *SOURCE))
        return [] if offset in allowed else [f"{transactions.group} has the offset {offset}, not one of {allowed}"]

    def _judge_failure(self, transactions: Transactions, has_others: bool) -> list[str]:
        error = transactions.failure
        if error is None:
            return []
        self.fates[f"fatal: {type(error).__name__}"] += 1
        name = transactions.name
        # The start of a producer names no epoch, so nothing protects the id from one that comes late.
        has_reason = has_others or name in self._cluster.coordinators.expired or name in self._cluster.late_starts
        if isinstance(error, SERIOUS) and not has_reason:
            return [f"{transactions.group} ({name}) has failed: {error}"]
        return []

    def _judge_ids(self, names: list[str]) -> list[str]:
        if self._cluster.met["errors of coordinators"]:
            return []  # the sender may have given up
        # A producer that must be closed ends no transaction: the coordinator does when its time is over.
        failed = {
            each.transactions.name for each in self._front_ends if each.transactions and each.transactions.failure
        }
        is_open = self._cluster.coordinators.is_open
        return [f"a transaction of {name} is open" for name in names if name not in failed and is_open(name)]


def _names(records: list[Sent]) -> str:
    return " ".join(sent.value[:12].decode() for sent in records)
