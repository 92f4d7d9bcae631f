"""Keeps the state of transactional ids as the coordinators of Kafka 4 do, with the errors that they answer with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
WRITES = (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT)
FENCED_FROM = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS = 47, 48, 49, 51
PRODUCER_FENCED, TRANSACTION_ABORTABLE = 90, 120
EXPECTED_EPOCH_FROM = 3  # InitProducerId
EPOCH_BUMP_FROM = 5  # EndTxn
ADDS_GROUP_FROM = 5  # TxnOffsetCommit
ABORTABLE_FROM = 4  # TxnOffsetCommit
ADDS_PARTITION_FROM = 12  # Produce
EPOCH_LAST = 32_766

Key = tuple[str, int]


@dataclass
class Transactional:
    """A transactional id. `former`: (producer id, epoch) that a repeated request may still have."""

    producer_id: int
    epoch: int = -1
    former: tuple[int, int] | None = None
    state: str = "Empty"
    implicit: bool = False  # its last transaction was ended with a new epoch (KIP-890)
    partitions: set[Key] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    pending: dict[tuple[str, str, int], int] = field(default_factory=dict)  # offsets, by (group, topic, partition)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)  # those that are committed
    ends: list[str] = field(default_factory=list)  # "commit", "abort" or "fence" of each transaction that was open


class ScriptedTransactions:
    """The coordinators of all transactional ids and groups.

    `completing`: so many requests after the end of a transaction are answered with CONCURRENT_TRANSACTIONS. A test
    that writes the markers itself replaces `is_completing`, and gets the beginning and the end of each transaction:
    `on_end` has what becomes of it, and the epoch of its markers.
    """

    def __init__(self) -> None:
        self.ids: dict[str, Transactional] = {}
        self.completing = 0
        self.is_completing: Callable[[Transactional], bool] = self._counts
        self.on_begin: Callable[[Transactional], None] = lambda found: None
        self.on_end: Callable[[Transactional, str, int], None] = lambda found, how, epoch: None
        self._left = 0
        self._next_producer_id = 7000

    def answer(self, api: int, version: int, body: dict[str, Any], code: int | dict[Key, int]) -> dict[str, Any]:
        """Return the response; with `code` not 0 nothing is done. A dict has codes of single partitions."""
        if api == INIT_PRODUCER_ID:
            return self._init(version, body, int(code))  # type: ignore[arg-type]
        if api == ADD_PARTITIONS_TO_TXN:
            return self._add_partitions(version, body, code)
        if api == ADD_OFFSETS_TO_TXN:
            return {"error_code": code or self._add_group(version, body)}
        if api == END_TXN:
            return self._end(version, body, int(code))  # type: ignore[arg-type]
        return self._commit_offsets(version, body, code)

    def produced(self, name: str, producer_id: int, epoch: int, version: int, key: Key) -> int:
        """Return the error code for a transactional batch, and add its partition if the version does that."""
        found = self.ids.get(name)
        if found is None or found.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != epoch:
            return INVALID_PRODUCER_EPOCH
        if version >= ADDS_PARTITION_FROM:
            if self.is_completing(found):
                return CONCURRENT_TRANSACTIONS
            self._begin(found).partitions.add(key)
        elif found.state != "Ongoing" or key not in found.partitions:
            return INVALID_TXN_STATE
        return 0

    def time_out(self, name: str, raises_epoch: bool) -> None:
        """Abort the open transaction, as the coordinator does when its time is over. `raises_epoch`: with KIP-890."""
        found = self.ids[name]
        assert found.state == "Ongoing"
        former = found.producer_id, found.epoch
        found.epoch += 1
        self._finish(found, "fence")
        if raises_epoch:
            found.former, found.implicit = former, True

    # ------------------------------------------------------------ requests

    def _init(self, version: int, body: dict[str, Any], code: int) -> dict[str, Any]:
        name, expected = body["transactional_id"], (body["producer_id"], body["producer_epoch"])
        if not code:
            found = self.ids.get(name)
            if found is None:
                found = self.ids[name] = Transactional(self._new_producer_id())
            code = self._raise_epoch(found, expected if version >= EXPECTED_EPOCH_FROM and expected[0] >= 0 else None)
        if code == PRODUCER_FENCED:
            code = _fenced(INIT_PRODUCER_ID, version)
        if code:
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        return {"error_code": 0, "producer_id": found.producer_id, "producer_epoch": found.epoch}

    def _raise_epoch(self, found: Transactional, expected: tuple[int, int] | None) -> int:
        present = found.producer_id, found.epoch
        if expected is not None and found.epoch >= 0 and expected != present:
            return 0 if expected == found.former and found.state != "Ongoing" else PRODUCER_FENCED
        if found.state == "Ongoing":
            found.epoch += 1
            self._finish(found, "fence")
            return CONCURRENT_TRANSACTIONS
        if self.is_completing(found):
            return CONCURRENT_TRANSACTIONS
        found.former = None if expected is None else present
        self._next_epoch(found)
        found.state, found.implicit = "Empty", False
        return 0

    def _add_partitions(self, version: int, body: dict[str, Any], code: int | dict[Key, int]) -> dict[str, Any]:
        keys = [(topic["name"], partition) for topic in body["topics"] for partition in topic["partitions"]]
        codes = code if isinstance(code, dict) else dict.fromkeys(keys, code)
        if not any(codes.values()):
            codes = dict.fromkeys(keys, self._check(ADD_PARTITIONS_TO_TXN, version, body))
        if not any(codes.values()):
            self._begin(self.ids[body["transactional_id"]]).partitions.update(keys)
        rows = _by_topic({key: codes.get(key, 55 if any(codes.values()) else 0) for key in keys})
        results = [
            {
                "name": topic,
                "results_by_partition": [
                    {"partition_index": partition, "partition_error_code": code} for partition, code in row
                ],
            }
            for topic, row in rows.items()
        ]
        return {"results_by_topic": results}

    def _add_group(self, version: int, body: dict[str, Any]) -> int:
        code = self._check(ADD_OFFSETS_TO_TXN, version, body)
        if not code:
            self._begin(self.ids[body["transactional_id"]]).groups.add(body["group_id"])
        return code

    def _commit_offsets(self, version: int, body: dict[str, Any], code: int | dict[Key, int]) -> dict[str, Any]:
        offsets = {
            (topic["name"], each["partition_index"]): each["committed_offset"]
            for topic in body["topics"]
            for each in topic["partitions"]
        }
        codes = code if isinstance(code, dict) else dict.fromkeys(offsets, code)
        if not any(codes.values()):
            codes = dict.fromkeys(offsets, self._check_group(version, body))
        group = body["group_id"]
        for (topic, partition), offset in offsets.items():
            if not codes.get((topic, partition)):
                self.ids[body["transactional_id"]].pending[group, topic, partition] = offset
        rows = _by_topic({key: codes.get(key, 0) for key in offsets})
        topics = [
            {"name": topic, "partitions": [{"partition_index": number, "error_code": code} for number, code in row]}
            for topic, row in rows.items()
        ]
        return {"topics": topics}

    def _check_group(self, version: int, body: dict[str, Any]) -> int:
        found = self.ids.get(body["transactional_id"])
        if found is None or found.producer_id != body["producer_id"]:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != body["producer_epoch"]:
            return INVALID_PRODUCER_EPOCH
        if version >= ADDS_GROUP_FROM:
            if self.is_completing(found):
                return CONCURRENT_TRANSACTIONS
            self._begin(found).groups.add(body["group_id"])
        elif found.state != "Ongoing" or body["group_id"] not in found.groups:
            return TRANSACTION_ABORTABLE if version >= ABORTABLE_FROM else INVALID_TXN_STATE
        return 0

    def _check(self, api: int, version: int, body: dict[str, Any]) -> int:
        found = self.ids.get(body["transactional_id"])
        if found is None or found.producer_id != body["producer_id"]:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != body["producer_epoch"]:
            return _fenced(api, version)
        return CONCURRENT_TRANSACTIONS if self.is_completing(found) else 0

    def _end(self, version: int, body: dict[str, Any], code: int) -> dict[str, Any]:
        found = self.ids.get(body["transactional_id"])
        code = code or self._end_code(found, version, body)
        if code or found is None or version < EPOCH_BUMP_FROM:
            return {"error_code": code}
        return {"error_code": 0, "producer_id": found.producer_id, "producer_epoch": found.epoch}

    def _end_code(self, found: Transactional | None, version: int, body: dict[str, Any]) -> int:
        sent, committed = (body["producer_id"], body["producer_epoch"]), body["committed"]
        if found is None:
            return INVALID_PRODUCER_ID_MAPPING
        ended_as = "CompleteCommit" if committed else "CompleteAbort"
        if found.implicit and sent == found.former and found.state != "Ongoing":
            if found.state == ended_as and self.is_completing(found):
                return CONCURRENT_TRANSACTIONS
            return 0 if found.state == ended_as else INVALID_TXN_STATE
        if found.producer_id != sent[0]:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != sent[1]:
            return _fenced(END_TXN, version)
        raises_epoch = version >= EPOCH_BUMP_FROM
        if found.state != "Ongoing":
            if raises_epoch and committed:
                return INVALID_TXN_STATE
            if not raises_epoch:
                if found.state == ended_as and self.is_completing(found):
                    return CONCURRENT_TRANSACTIONS
                return 0 if found.state == ended_as else INVALID_TXN_STATE
            if self.is_completing(found):
                return CONCURRENT_TRANSACTIONS if found.state == ended_as else INVALID_TXN_STATE
            found.state = ended_as
        else:
            self._finish(found, "commit" if committed else "abort", raises_epoch)
        found.implicit = raises_epoch
        if raises_epoch:
            found.former = sent
            self._next_epoch(found)
        return 0

    # ------------------------------------------------------------ states

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def _next_epoch(self, found: Transactional) -> None:
        if found.epoch >= EPOCH_LAST:
            found.producer_id, found.epoch = self._new_producer_id(), 0
        else:
            found.epoch += 1

    def _begin(self, found: Transactional) -> Transactional:
        if found.state != "Ongoing":
            found.state = "Ongoing"
            self.on_begin(found)
        return found

    def _finish(self, found: Transactional, how: str, raises_epoch: bool = False) -> None:
        found.ends.append(how)
        found.state = "CompleteCommit" if how == "commit" else "CompleteAbort"
        if how == "commit":
            found.offsets.update(found.pending)
        found.former = None
        found.implicit = False
        self.on_end(found, how, found.epoch + raises_epoch)
        found.partitions.clear()
        found.groups.clear()
        found.pending.clear()
        self._left = self.completing

    def _counts(self, found: Transactional) -> bool:
        """Return whether the end of a transaction is still being written to its partitions."""
        self._left -= self._left > 0
        return self._left > 0


def _fenced(api: int, version: int) -> int:
    return PRODUCER_FENCED if version >= FENCED_FROM[api] else INVALID_PRODUCER_EPOCH


def _by_topic(codes: dict[Key, int]) -> dict[str, list[tuple[int, int]]]:
    topics: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), code in codes.items():
        topics.setdefault(topic, []).append((partition, code))
    return topics
