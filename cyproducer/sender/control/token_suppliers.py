"""Takes OAuth tokens of front-ends, and asks one front-end after the other for the next token before it is needed."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cyproducer.host.messages import InvalidMessageError, parse_token
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer, refusal
from cyproducer.sender.control.quotas import RefusalLog
from cyproducer.sender.handover.handover import Line

if TYPE_CHECKING:
    from cyproducer.sender.cluster.supplied_tokens import Refusal, SuppliedTokens  # only with OAUTHBEARER

__all__ = ["TokenSuppliers"]

#: How long a connection may last on which a token is checked. The sender waits less long for the check.
CHECK_S = 15.0
#: After an accepted token, how long until the attach request must come.
_NEXT_MESSAGE_S = 5.0
_LONGEST_WAIT_S = 3600.0


class TokenSuppliers:
    """The processes that supply tokens, each by a connection on which the sender asks for them.

    `tokens` is None if the sender has credentials of its own.
    """

    def __init__(
        self,
        tokens: "SuppliedTokens | None",
        table: PeerTable,
        refusals: RefusalLog,
        line: Line,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self._tokens = tokens
        self._line = line
        self._table = table
        self._refusals = refusals
        self._log = log
        self._clock = clock
        self._suppliers: list[Peer] = []  # the one that was asked longest ago comes first
        self._asked: Peer | None = None
        self._until = 0.0
        self._left = 0  # how many are to be asked in this round
        self._trouble = ""

    # ------------------------------------------------------------------ messages

    def on_token(self, peer: Peer, message: dict[str, Any]) -> None:
        """Take a token, or the reason why there is none. The answer to a token comes when a broker has checked it."""
        tokens = self._tokens
        if tokens is None:
            text = "the sender has credentials of its own; leave sasl_oauth_token_provider out to use them"
            self._refuse(peer, "CREDENTIALS", text)
            return
        if not peer.is_owner:
            text = f"uid {peer.uid} may not supply tokens to this sender, only its owner and root may"
            self._refuse(peer, "REFUSED", text)
            return
        try:
            token = parse_token(message)
        except InvalidMessageError as error:
            self._refuse(peer, "MALFORMED", str(error))
            return
        if token.trouble is not None:
            self._add_supplier(peer)
            self._on_failure(peer, token.trouble)
            return
        peer.deadline = None if peer not in self._table.unfinished.values() else self._clock() + CHECK_S
        tokens.accept_new(
            token.value,
            token.expires_at,
            token.extensions,
            lambda refused: self._on_accepted(peer, token.serve, refused),
        )

    def _on_accepted(self, peer: Peer, serves: bool, refused: "Refusal | None") -> None:
        if refused is None:
            self._hand_to_supervisor()
        if not self._table.has(peer):
            return  # it has hung up
        if serves:
            self._add_supplier(peer)  # also if this token is refused: it may get a better one
        if refused is not None:
            self._refuse(peer, refused.name, refused.text)
            return
        peer.vouched = True
        if not serves and peer.deadline is not None:
            peer.deadline = self._clock() + _NEXT_MESSAGE_S
        if self._asked is peer:
            self._asked, self._left = None, 0
        peer.send({"ok": True})

    def _hand_to_supervisor(self) -> None:
        assert self._tokens is not None
        self._line.tell({"op": "token", "token": self._tokens.for_successor()})

    def _add_supplier(self, peer: Peer) -> None:
        self._table.finish(peer)
        if peer not in self._suppliers:
            self._suppliers.append(peer)

    def _refuse(self, peer: Peer, name: str, text: str) -> None:
        peer.send(refusal(name, text))
        self._refusals.log(peer, logging.WARNING, "an OAuth token was refused", why=text)
        if self._asked is peer and name == "UNCHECKED":
            self._left = 0  # no broker can be asked, so a token of the next process would not help
        if peer in self._suppliers:
            self._on_failure(peer, text)
        elif not peer.is_owner:
            self._table.end(peer, "it may not supply a token")

    # ------------------------------------------------------------------ requests

    def run(self) -> None:
        """Ask for a token if one is due, and ask the next process if the one that was asked does not answer."""
        if self._tokens is None:
            return
        self._tokens.end_late_checks()
        now = self._clock()
        self._suppliers = [peer for peer in self._suppliers if self._table.has(peer)]
        if self._asked is not None and self._asked not in self._suppliers:
            self._on_failure(self._asked, "the process that was asked has ended")
        elif self._asked is not None and now >= self._until:
            self._on_failure(self._asked, "sasl_oauth_token_provider does not return")
        due = self._tokens.due_in_s()
        if self._asked is None and due is not None and due <= 0:
            self._left = len(self._suppliers)
            self._ask_next("no attached process has a sasl_oauth_token_provider")

    def next_time(self) -> float:
        """Return when run() must be called, by the clock; infinity: not before a message comes."""
        if self._tokens is None:
            return math.inf
        check_s, due = self._tokens.next_check_ends_in_s(), self._tokens.due_in_s()
        late = math.inf if check_s is None else self._clock() + check_s
        if self._asked is not None:
            return min(late, self._until)
        return late if due is None else min(late, self._clock() + min(due, _LONGEST_WAIT_S))

    def _ask_next(self, trouble: str) -> None:
        """Ask the next process of this round. After the last one, note why there is no token."""
        assert self._tokens is not None
        self._asked = None
        while self._left > 0 and self._suppliers:
            self._left -= 1
            peer = self._suppliers.pop(0)
            self._suppliers.append(peer)
            if peer.send({"op": "token"}):
                self._asked, self._until = peer, self._clock() + self._tokens.patience_s()
                return
        self._left = 0
        self._tokens.on_not_supplied(trouble)
        if trouble != self._trouble:
            self._trouble = trouble
            self._log.warning("there is no new OAuth token: %s; the sender asks again", trouble)

    def _on_failure(self, peer: Peer, text: str) -> None:
        if self._asked is peer:
            self._ask_next(text)
        elif self._tokens is not None and self._asked is None and self._tokens.current is None:
            self._tokens.on_not_supplied(text)
