"""Answers requests about transactions for a scripted broker: a coordinator that can move, and fail on command."""

from collections import deque
from typing import Any

from support.scripted_transactions import WRITES, ScriptedTransactions

OFFSET_FETCH, FIND_COORDINATOR, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT = 9, 10, 22, 28
DESCRIBE_CONFIGS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 32, 65, 66
OF_GROUPS = (OFFSET_FETCH, TXN_OFFSET_COMMIT)
NOT_COORDINATOR, UNKNOWN_ID = 16, 105


class ScriptedCoordinator:
    """One transactional id, whose coordinator is the broker `node`; with `transactions`, all transactional ids.

    `group_node`: the coordinator of all groups. `states`: the states in which the id is described, the last one for
    ever. `codes`: by API, the error codes of the next responses; for requests with partitions also codes by (topic,
    partition). `asked`: (API, node) of each request. `transaction_version`: the finalized feature; None: no feature.
    """

    def __init__(
        self,
        name: str = "a",
        node: int = 1,
        states: tuple[str, ...] = ("Ongoing",),
        transactions: ScriptedTransactions | None = None,
        transaction_version: int | None = None,
    ) -> None:
        self.name = name
        self.node = self.group_node = node
        self.transactions = transactions
        self.transaction_version = transaction_version
        self.features_epoch = 1
        self.states = deque(states)
        self.codes: dict[int, deque[Any]] = {}
        self.described: dict[str, Any] = {}  # fields of the description
        self.max_timeout_ms: str | None = "600000"
        self.cut_short: set[int] = set()  # responses of these APIs lack their last bytes
        self.asked: list[tuple[int, int]] = []
        self.asked_for: list[dict[str, Any]] = []  # the bodies

    def features(self) -> dict[str, Any]:
        """Return the fields of an ApiVersions response that have the finalized features."""
        if self.transaction_version is None:
            return {}
        level = {"max_version_level": self.transaction_version, "min_version_level": self.transaction_version}
        return {
            "finalized_features_epoch": self.features_epoch,
            "finalized_features": [{"name": "transaction.version", **level}],
        }

    def answer(
        self, api: int, node: int, body: dict[str, Any], host: str, port: int, version: int = 0
    ) -> dict[str, Any]:
        self.asked.append((api, node))
        self.asked_for.append(body)
        queue = self.codes.get(api)
        code = queue.popleft() if queue else 0
        if api == FIND_COORDINATOR:
            found = self.node if body["key_type"] else self.group_node
            place = {"node_id": -1 if code else found, "host": host, "port": port, "error_code": code}
            if body["coordinator_keys"]:
                return {"coordinators": [{"key": body["coordinator_keys"][0], **place}]}
            return place
        if api != LIST_TRANSACTIONS and node != (self.group_node if api in OF_GROUPS else self.node):
            code = NOT_COORDINATOR
        if api == OFFSET_FETCH:
            return {"groups": [self._offsets(group, code) for group in body["groups"]]}
        if self.transactions is not None and (api in WRITES or api == INIT_PRODUCER_ID):
            return self.transactions.answer(api, version, body, code)
        if api == INIT_PRODUCER_ID:
            return {"error_code": code, "producer_id": 7, "producer_epoch": 1}
        if api == LIST_TRANSACTIONS:
            rows = [{"transactional_id": self.name, "producer_id": 7, "transaction_state": self.states[0]}]
            return {"error_code": code, "unknown_state_filters": [], "transaction_states": rows * (node == self.node)}
        if api == DESCRIBE_CONFIGS:
            (resource,) = body["resources"]
            config = {"value": self.max_timeout_ms, "read_only": True, "is_sensitive": False}
            named = {key: resource[key] for key in ("resource_type", "resource_name")}
            configs = [{"name": name, **config} for name in resource["configuration_keys"] if not code]
            return {"results": [{"error_code": code, "error_message": None, "configs": configs, **named}]}
        asked = body["transactional_ids"][0]
        row = {
            "error_code": code or (0 if asked == self.name else UNKNOWN_ID),
            "transactional_id": asked,
            "transaction_state": self.states[0],
            "transaction_timeout_ms": 50_000,
            "transaction_start_time_ms": 1_000,
            "producer_id": 7,
            "producer_epoch": 0,
            "topics": [{"topic": "t", "partitions": [1, 0]}],
            **self.described,
        }
        if len(self.states) > 1 and not row["error_code"]:
            self.states.popleft()
        return {"transaction_states": [row]}

    def _offsets(self, group: dict[str, Any], code: int) -> dict[str, Any]:
        """Return the offsets of a group that all transactional ids have committed; -1: none."""
        committed: dict[tuple[str, str, int], int] = {}
        for found in self.transactions.ids.values() if self.transactions is not None else ():
            committed |= found.offsets
        name = group["group_id"]
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": committed.get((name, topic["name"], index), -1),
                        "metadata": "",
                        "error_code": 0,
                    }
                    for index in topic["partition_indexes"]
                ],
            }
            for topic in group["topics"]
        ]
        return {"group_id": name, "topics": topics, "error_code": code}
