"""Acts as the coordinators of transactional ids and of groups, by the rules of Kafka 4's brokers.

Transactions has the state of each transactional id. Coordinators gives the ids and groups their places, and answers
the requests; a driver derives from it and decides about places, faults and time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cyproducer.codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_NOT_FOUND,
)
from kfake.codes import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
)

WRITES = (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT)
READS = (FIND_COORDINATOR, OFFSET_FETCH, DESCRIBE_CONFIGS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS)
GROUP, TRANSACTION = 0, 1  # key types
FENCED_FROM = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}
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
    timeout_ms: int = 60_000
    pending: dict[tuple[str, str, int], int] = field(default_factory=dict)  # offsets, by (group, topic, partition)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)  # those that are committed
    ends: list[str] = field(default_factory=list)  # "commit", "abort" or "fence" of each transaction that was open


class Transactions:
    """The state of all transactional ids, and the offsets that they have committed.

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
        if api == ADD_PARTITIONS_TO_TXN:
            return self._add_partitions(version, body, code)
        if api == TXN_OFFSET_COMMIT:
            return self._commit_offsets(version, body, code)
        assert not isinstance(code, dict)
        if api == ADD_OFFSETS_TO_TXN:
            return {"error_code": code or self._add_group(version, body)}
        return (self._init if api == INIT_PRODUCER_ID else self._end)(version, body, code)

    def verify(self, name: str, producer_id: int, epoch: int, version: int, key: Key) -> int:
        """Return the error code for a batch of a transaction, as the leader of its partition asks for it.

        The version of the Produce request says whether this adds the partition to the transaction.
        """
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

    def state_of(self, found: Transactional) -> str:
        """Return the state by Kafka's name: until the markers are written, the end of a transaction is prepared."""
        is_prepared = found.state.startswith("Complete") and self.is_completing(found)
        return found.state.replace("Complete", "Prepare") if is_prepared else found.state

    def committed(self, group: str, topic: str, partition: int) -> int:
        """Return the offset that a group has committed; -1 if there is none."""
        offsets = [found.offsets.get((group, topic, partition)) for found in self.ids.values()]
        return next((offset for offset in reversed(offsets) if offset is not None), -1)

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
        found.timeout_ms = body["transaction_timeout_ms"]
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
        rows = _by_topic({key: codes.get(key, OPERATION_NOT_ATTEMPTED if any(codes.values()) else 0) for key in keys})
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


class Coordinators:
    """The coordinators of all transactional ids and groups. `version`: the feature transaction.version; None: it lacks.

    A driver overrides `place_of`, `find`, `is_up`, `code_of`, `is_done_before` and `describe`.
    """

    def __init__(self, version: int | None = None, transactions: Transactions | None = None) -> None:
        self.version = version
        self.transactions = transactions or Transactions()
        self.features_epoch = 1
        self.max_timeout_ms: str | None = "600000"  # as in the configuration of the brokers

    # ------------------------------------------------------------ what a driver decides

    def place_of(self, kind: int, key: str) -> int | None:
        """Return the node that coordinates a transactional id or a group."""
        raise NotImplementedError

    def find(self, kind: int, key: str) -> int:
        """Return the node, after giving the key one if it has none."""
        node = self.place_of(kind, key)
        assert node is not None
        return node

    def is_up(self, node: int) -> bool:
        return True

    def code_of(self, api: int, node: int, body: dict[str, Any]) -> Any:
        """Return the error code of the response: 0, or a fault. A dict has codes of single partitions."""
        return 0

    def is_done_before(self, code: Any) -> bool:
        """Return whether a request is done although its response has this error code."""
        return False

    def describe(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return the description of a transactional id; `row` is the true one."""
        return row

    # ------------------------------------------------------------ requests

    def features(self) -> dict[str, Any]:
        """Return the fields of an ApiVersions response that have the finalized features."""
        if self.version is None:
            return {}
        level = {"max_version_level": self.version, "min_version_level": self.version}
        features = [{"name": "transaction.version", **level}]
        return {"finalized_features_epoch": self.features_epoch, "finalized_features": features}

    @staticmethod
    def handles(api: int, body: dict[str, Any]) -> bool:
        """Return whether a request is one for a coordinator."""
        is_init = api == INIT_PRODUCER_ID and body["transactional_id"] is not None
        return is_init or api in READS or api in WRITES

    def answer(
        self, api: int, version: int, node: int, body: dict[str, Any], address_of: Callable[[int], tuple[str, int]]
    ) -> dict[str, Any]:
        """Return the response of a node. `address_of`: host and port of a node."""
        code = self.code_of(api, node, body)
        if api == FIND_COORDINATOR:
            return self._find(body, code, address_of)
        if api == LIST_TRANSACTIONS:
            return {"error_code": code, "unknown_state_filters": [], "transaction_states": self._list(node)}
        if api == DESCRIBE_CONFIGS:
            return self._configs(body, code)
        kind, key = _key_of(api, body)
        is_here = self.place_of(kind, key) == node
        if not is_here:
            code = NOT_COORDINATOR
        if api == DESCRIBE_TRANSACTIONS:
            return {"transaction_states": [self._describe(key, code)]}
        if api == OFFSET_FETCH:
            return {"groups": [self._offsets(group, code) for group in body["groups"]]}
        if is_here and code and self.is_done_before(code):
            self.transactions.answer(api, version, body, 0)
        return self.transactions.answer(api, version, body, code)

    def _find(self, body: dict[str, Any], code: int, address_of: Callable[[int], tuple[str, int]]) -> dict[str, Any]:
        keys = body["coordinator_keys"]
        key = keys[0] if keys else body["key"]
        node = self.find(body["key_type"], key)
        code = code or (0 if self.is_up(node) else COORDINATOR_NOT_AVAILABLE)
        host, port = address_of(node)
        node_id = -1 if code else node
        place = {"node_id": node_id, "host": host, "port": port, "error_code": code, "error_message": None}
        return {"coordinators": [{"key": key, **place}]} if keys else place

    def _list(self, node: int) -> list[dict[str, Any]]:
        names = [name for name in self.transactions.ids if self.place_of(TRANSACTION, name) == node]
        rows = [self.describe(name, self._row(name)) for name in names]
        return [{key: row[key] for key in ("transactional_id", "producer_id", "transaction_state")} for row in rows]

    def _describe(self, name: str, code: int) -> dict[str, Any]:
        code = code or (0 if name in self.transactions.ids else TRANSACTIONAL_ID_NOT_FOUND)
        if not code:
            return {"error_code": 0, **self.describe(name, self._row(name))}
        unknown = {"transaction_state": "", "producer_id": -1, "producer_epoch": -1, "topics": []}
        times = {"transaction_timeout_ms": 0, "transaction_start_time_ms": -1}
        return {"error_code": code, "transactional_id": name, **unknown, **times}

    def _row(self, name: str) -> dict[str, Any]:
        found = self.transactions.ids[name]
        topics = _by_topic(dict.fromkeys(sorted(found.partitions), 0))
        return {
            "transactional_id": name,
            "transaction_state": self.transactions.state_of(found),
            "transaction_timeout_ms": found.timeout_ms,
            "transaction_start_time_ms": 1000 if found.state == "Ongoing" else -1,
            "producer_id": found.producer_id,
            "producer_epoch": found.epoch,
            "topics": [{"topic": topic, "partitions": [index for index, _ in row]} for topic, row in topics.items()],
        }

    def _offsets(self, group: dict[str, Any], code: int) -> dict[str, Any]:
        """Return the offsets of a group that all transactional ids have committed; -1: none."""
        name = group["group_id"]
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": self.transactions.committed(name, topic["name"], index),
                        "metadata": "",
                        "error_code": 0,
                    }
                    for index in topic["partition_indexes"]
                ],
            }
            for topic in group["topics"]
        ]
        return {"group_id": name, "topics": topics, "error_code": code}

    def _configs(self, body: dict[str, Any], code: int) -> dict[str, Any]:
        (resource,) = body["resources"]
        config = {"value": self.max_timeout_ms, "read_only": True, "is_sensitive": False}
        named = {key: resource[key] for key in ("resource_type", "resource_name")}
        configs = [{"name": name, **config} for name in resource["configuration_keys"] if not code]
        return {"results": [{"error_code": code, "error_message": None, "configs": configs, **named}]}


def _key_of(api: int, body: dict[str, Any]) -> tuple[int, str]:
    if api == OFFSET_FETCH:
        return GROUP, body["groups"][0]["group_id"]
    if api == TXN_OFFSET_COMMIT:
        return GROUP, body["group_id"]
    return TRANSACTION, body["transactional_ids"][0] if api == DESCRIBE_TRANSACTIONS else body["transactional_id"]


def _fenced(api: int, version: int) -> int:
    return PRODUCER_FENCED if version >= FENCED_FROM[api] else INVALID_PRODUCER_EPOCH


def _by_topic(codes: dict[Key, int]) -> dict[str, list[tuple[int, int]]]:
    topics: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), code in codes.items():
        topics.setdefault(topic, []).append((partition, code))
    return topics
