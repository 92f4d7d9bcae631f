"""Runs generators that call brokers, one request at a time for each, and finds the coordinators of keys.

A generator yields calls and pauses, and gets the bodies of the responses. Every call may be repeated: a call whose
connection ends can have reached the broker.
"""

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.tables import NEVER
from cyproducer.protocol.versions import UNSUPPORTED_VERSION, ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link
from cyproducer.sender.engine.native import Loop

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = [
    "GROUP",
    "PAUSE_MS",
    "TRANSACTION",
    "Answer",
    "BrokerError",
    "Call",
    "CallError",
    "CallRunner",
    "InvalidAnswerError",
    "NoAnswerError",
    "Pause",
    "Run",
    "Steps",
    "UnsupportedError",
    "ask_coordinator",
    "code_of",
    "find_coordinator",
    "repeat",
    "wait_for_cluster",
]

GROUP, TRANSACTION = 0, 1  # the key types of FindCoordinator
BATCHED_KEYS_FROM = 4  # FindCoordinator
PAUSE_MS = 20  # between attempts, if the broker asks for another one

Answer = dict[str, Any]


class Call(NamedTuple):
    """A request to one broker; `broker_id` None: to any broker. `body` makes the request's body for a version.

    The generator gets the body of the response. `last`: the newest version that may be used. `limit_ms`: the time for
    this call, if it is shorter than that of each call of the generator.
    """

    broker_id: int | None
    api: ApiKey
    body: Callable[[int], dict[str, Any]]
    last: int = NEVER
    limit_ms: int | None = None


class Pause(NamedTuple):
    """A pause of the generator, which wake() of the runner ends early."""

    ms: int


_Result = TypeVar("_Result")
Steps = Generator[Call | Pause, Any, _Result]
"""A generator of calls, and what it returns."""


class CallError(Exception):
    """A call cannot be made, or has no result; the text says why."""


class NoAnswerError(CallError):
    """The broker cannot be reached, or does not answer in time."""


class InvalidAnswerError(CallError):
    """The response cannot be read."""


class BrokerError(CallError):
    """The broker has refused the request with `code`, which is not retriable."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or describe(code))
        self.code = code


class UnsupportedError(BrokerError):
    """The broker does not support the API, or not in the version that is needed."""

    def __init__(self, text: str) -> None:
        super().__init__(UNSUPPORTED_VERSION, text)


class Run:
    """A generator that is being run. `until_ms` None: without a time limit.

    `call_ms` limits each call. `is_patient`: a call also waits for a broker to which a connection has failed.
    """

    def __init__(
        self, steps: Steps[Any], on_end: Callable[[Any], None], now_ms: int, call_ms: int, limit_ms: int | None
    ) -> None:
        self.steps = steps
        self.on_end = on_end
        self.call_ms = call_ms
        self.until_ms = None if limit_ms is None else now_ms + limit_ms
        self.is_patient = limit_ms is not None
        self.call: Call | None = None
        self.call_since_ms = 0
        self.metadata_answers = 0  # when the call began
        self.call_until_ms = 0
        self.at_ms = now_ms
        self.asked: Link | None = None
        self.last_error = ""


class CallRunner:
    """Runs generators of calls. The owner calls maintain() and on_closed()."""

    def __init__(self, brokers: "Brokers", loop: Loop, log: logging.Logger) -> None:
        self._brokers = brokers
        self._loop = loop
        self._log = log
        self._runs: list[Run] = []
        self._must_look = False  # a generator was started or woken

    @property
    def count(self) -> int:
        """The number of generators that have not ended."""
        return len(self._runs)

    def start(
        self,
        steps: Steps[Any],
        on_end: Callable[[Any], None],
        now_ms: int,
        call_ms: int,
        limit_ms: int | None = None,
    ) -> Run:
        """Begin to run `steps`. `on_end` gets what it returns, or the CallError with which it ends."""
        run = Run(steps, on_end, now_ms, call_ms, limit_ms)
        self._runs.append(run)
        self._must_look = True
        return run

    def wake(self, run: Run) -> None:
        """End the pause of a generator."""
        run.at_ms = 0
        self._must_look = True

    def maintain(self, now_ms: int) -> int:
        """Do what is due for all generators. Return in how many ms something is due again."""
        due_ms = NOTHING_DUE_MS
        self._must_look = False
        for run in list(self._runs):
            due_ms = min(due_ms, self._go_on(run, now_ms))
        return 0 if self._must_look else due_ms

    def on_closed(self, link: Link, now_ms: int) -> None:
        """Fail the calls in flight on a connection that has ended."""
        for run in [run for run in self._runs if run.asked is link]:
            self._advance(run, NoAnswerError(f"broker {link.name} has closed the connection"), now_ms)

    def _go_on(self, run: Run, now_ms: int) -> int:
        if run not in self._runs:
            return NOTHING_DUE_MS
        if run.call is None:
            if run.at_ms > now_ms:
                return run.at_ms - now_ms
            self._advance(run, None, now_ms)
            if run.call is None:
                return max(run.at_ms - now_ms, 0)
        assert run.call is not None
        if now_ms >= run.call_until_ms:
            self._advance(run, self._no_answer(run), now_ms)
            return 0
        wait_ms = run.call_until_ms - now_ms
        if run.asked is None:
            wait_ms = min(wait_ms, self._send(run, run.call, now_ms))
        return wait_ms

    def _no_answer(self, run: Run) -> NoAnswerError:
        if self._brokers.metadata.bootstrapping:
            reason = self._brokers.metadata.last_error or self._brokers.last_error
            return NoAnswerError(f"no bootstrap server has answered{': ' if reason else ''}{reason}")
        broker_id = None if run.call is None else run.call.broker_id
        who = "" if broker_id is None else f"of broker {broker_id} "
        return NoAnswerError(f"no answer {who}within {run.call_ms} ms")

    def _link_for(self, run: Run, call: Call, now_ms: int) -> Link | int:
        """Return the link that can take the request now, or in how many ms to look again."""
        link: Link | None = None
        if call.broker_id is None:
            link = self._brokers.least_loaded(call.api)
            if link is None and self._brokers.least_loaded() is None:
                return self._brokers.connect_any(now_ms)
            if link is None and not self._brokers.node_choice.knows(call.api):
                self._advance(run, UnsupportedError(f"no connected broker supports {call.api.name}"), now_ms)
                return 0
        elif call.broker_id in self._brokers.metadata.brokers:
            link = self._brokers.links.get(call.broker_id)
            if link is not None and link.versions is None:
                wait_ms = self._brokers.connect(link, now_ms)
                if not run.is_patient and self._has_failed(link, run.call_since_ms):
                    text = f"broker {link.name} cannot be reached: {link.last_error}"
                    self._advance(run, NoAnswerError(text), now_ms)
                    return 0
                return wait_ms
        elif self._brokers.metadata.answers > run.metadata_answers:
            text = f"broker {call.broker_id} is not one of the cluster, by the newest metadata"
            self._advance(run, NoAnswerError(text), now_ms)
            return 0
        else:  # it is new, or it has left the cluster
            self._brokers.metadata.request_update()
        if link is None or not self._loop.takes_requests(link.index):
            return PAUSE_MS
        return link

    def _has_failed(self, link: Link, since_ms: int) -> bool:
        """Return whether the last attempt to connect has failed since then, and no other one is being made."""
        is_closed = self._loop.connection_state(link.index)[0] == "closed" and not link.resolving
        return is_closed and link.unreachable and link.attempted_ms >= since_ms

    def _send(self, run: Run, call: Call, now_ms: int) -> int:
        """Send the call if its broker can take a request. Otherwise connect. Return in how many ms to look again."""
        link = self._link_for(run, call, now_ms)
        if isinstance(link, int):
            return link
        assert link.versions is not None
        if call.api not in link.versions:
            self._advance(run, UnsupportedError(f"broker {link.name} does not support {call.api.name}"), now_ms)
            return 0
        version = min(link.versions[call.api], call.last)
        run.asked = link

        def respond(link: Link, payload: bytes, now_ms: int) -> None:
            if run.call is not call or run not in self._runs:
                return
            try:
                body = self._brokers.take_answer(link, call.api, payload, version=version)
            except ProtocolError as error:  # the connection is kept: it has the batches of all processes
                text = f"broker {link.name} has sent an invalid response: {error}"
                self._advance(run, InvalidAnswerError(text), now_ms)
            else:
                self._advance(run, body, now_ms)

        try:
            self._brokers.request(link, call.api, call.body(version), respond, version=version)
        except ProtocolError as error:
            self._advance(run, CallError(str(error)), now_ms)
        except CallError as error:
            self._advance(run, error, now_ms)
        return NOTHING_DUE_MS

    def _advance(self, run: Run, got: Any, now_ms: int) -> None:
        """Give the generator what it waits for, and note what it waits for next."""
        is_late = run.until_ms is not None and now_ms >= run.until_ms and not isinstance(got, dict)
        if isinstance(got, CallError):
            run.last_error = str(got)
        elif is_late and not run.last_error:
            run.last_error = str(self._no_answer(run))
        run.call = run.asked = None
        try:
            if is_late:
                raise CallError(run.last_error)
            step = run.steps.throw(got) if isinstance(got, CallError) else run.steps.send(got)
        except StopIteration as end:
            self._end(run, end.value)
        except CallError as error:
            self._end(run, error)
        except Exception as error:  # it must not end the sender: each restarted sender would end, too
            self._log.exception("a request about transactions could not be handled")
            self._end(run, CallError(f"it could not be handled ({type(error).__name__}: {error})"))
        else:
            if isinstance(step, Pause):
                run.at_ms = now_ms + step.ms
            else:
                until_ms = now_ms + min(run.call_ms, run.call_ms if step.limit_ms is None else step.limit_ms)
                run.call, run.call_since_ms = step, now_ms
                run.metadata_answers = self._brokers.metadata.answers
                run.call_until_ms = until_ms if run.until_ms is None else min(until_ms, run.until_ms)

    def _end(self, run: Run, result: Any) -> None:
        self._runs.remove(run)
        run.steps.close()
        run.on_end(result)


# ------------------------------------------------------------------------ parts of generators


def code_of(body: Answer) -> int:
    """Return the error code of a response that has one for the whole."""
    return int(body["error_code"])


def wait_for_cluster(brokers: "Brokers") -> Steps[None]:
    """Wait until a broker has answered with the metadata of the cluster."""
    while brokers.metadata.bootstrapping:
        yield Pause(PAUSE_MS)


def repeat(call: Call, code_of: Callable[[Answer], int], backoff: ExponentialBackoff) -> Steps[Answer]:
    """Make a call again while the answer is an error that is retriable. Return the answer without an error.

    Raise BrokerError for another error.
    """
    attempts = 0
    while True:
        answer: Answer = yield call
        code = code_of(answer)
        if not code:
            return answer
        if not error_of(code).retriable:
            raise BrokerError(code)
        yield Pause(backoff.delay_ms(attempts))
        attempts += 1


def find_coordinator(brokers: "Brokers", key_type: int, key: str, backoff: ExponentialBackoff) -> Steps[int]:
    """Return the broker id of the coordinator, of which the metadata may know nothing yet.

    Raise BrokerError for an error that is not retriable.
    """

    def request(version: int) -> dict[str, Any]:
        if version == 0 and key_type != GROUP:
            raise UnsupportedError("the broker is too old to find the coordinator of a transaction (before Kafka 0.11)")
        keys = {"coordinator_keys": [key]} if version >= BATCHED_KEYS_FROM else {"key": key}
        return {"key_type": key_type, **keys}

    def place(body: Answer) -> Answer:
        found: Answer = body["coordinators"][0] if body["coordinators"] else body
        return found

    call = Call(None, ApiKey.FIND_COORDINATOR, request)
    while True:
        try:
            body = yield from repeat(call, lambda body: code_of(place(body)), backoff)
        except NoAnswerError:
            yield Pause(PAUSE_MS)  # another broker is asked
            continue
        return int(place(body)["node_id"])


def ask_coordinator(
    brokers: "Brokers",
    backoff: ExponentialBackoff,
    coordinator: tuple[int, str],
    call_of: Callable[[int], Call],
    code_of: Callable[[Answer], int],
    text_of: Callable[[int], str] = describe,
) -> Steps[tuple[Answer, int]]:
    """Ask the coordinator, which is looked up before each attempt. Return (its answer, its broker id).

    coordinator: (key type, key). call_of: makes the call to a broker id. Raise BrokerError for an error that is not
    retriable, with `text_of` its code.
    """
    attempts = 0
    while True:
        broker_id = yield from find_coordinator(brokers, *coordinator, backoff)
        try:
            answer = yield call_of(broker_id)
        except NoAnswerError:
            pass
        else:
            code = code_of(answer)
            if not code:
                return answer, broker_id
            if not error_of(code).retriable:
                raise BrokerError(code, text_of(code))
        yield Pause(backoff.delay_ms(attempts))
        attempts += 1
