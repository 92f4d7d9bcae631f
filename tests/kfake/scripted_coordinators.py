"""Coordinators that fail on command: which node they are on, and what goes wrong, is written by a test."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from kfake.coordinator import TRANSACTION, Coordinators, Transactions


class ScriptedCoordinators(Coordinators):
    """All transactional ids are coordinated by the broker `node`, all groups by `group_node`.

    `states`: the states in which ids are described, one for each description, the last one for ever; empty: the true
    ones. `described`: further fields of a description. `codes`: by API, the error codes of the next responses; for
    requests with partitions also codes by (topic, partition). `asked`: (API, node) of each request.
    """

    def __init__(
        self,
        node: int = 1,
        states: Iterable[str] = (),
        version: int | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        super().__init__(version, transactions)
        self.node = self.group_node = node
        self.states = deque(states)
        self.codes: dict[int, deque[Any]] = {}
        self.described: dict[str, Any] = {}
        self.cut_short: set[int] = set()  # responses of these APIs lack their last bytes
        self.asked: list[tuple[int, int]] = []
        self.asked_for: list[dict[str, Any]] = []  # the bodies

    def place_of(self, kind: int, key: str) -> int:
        return self.node if kind == TRANSACTION else self.group_node

    def code_of(self, api: int, node: int, body: dict[str, Any]) -> Any:
        self.asked.append((api, node))
        self.asked_for.append(body)
        queue = self.codes.get(api)
        return queue.popleft() if queue else 0

    def describe(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        state = {"transaction_state": self.states[0]} if self.states else {}
        if len(self.states) > 1:
            self.states.popleft()
        return row | state | self.described
