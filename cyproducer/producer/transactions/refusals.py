"""Makes the errors of transactional calls: what is not possible in a state, and what the sender or a record tells."""

import copy

from cyproducer import errors
from cyproducer.error_table import FATAL_FOR_TRANSACTIONS
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.facts import FATAL, Answer, Facts, State

__all__ = [
    "advised",
    "error_of",
    "failed_answer",
    "failed_commit",
    "failed_record",
    "late",
    "lost",
    "refuse",
    "unknown_result",
]

_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
_FENCED_CODES = tuple(each.code for each in _FENCED)
_NOT_KNOWN = "it is not known whether the transaction was committed"
_LOOK = "look for its records with a reader of committed records before you repeat it"

# What to do instead of a call that is not possible in this state.
_ADVICE = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "wait until init_transactions() has returned",
    State.READY: "call begin_transaction() first",
    State.IN_TRANSACTION: "call commit_transaction() or abort_transaction() first",
    State.COMMITTING_TRANSACTION: "wait until commit_transaction() has returned",
    State.ABORTING_TRANSACTION: "wait until abort_transaction() has returned",
    State.ABORTABLE_ERROR: "call abort_transaction()",
    State.FATAL_ERROR: "close this producer",
}


def refuse(now: Facts, running: Call | None, name: str, allowed: tuple[State, ...]) -> None:
    """Raise the error of a call that is not allowed in this state. `running`: the call whose turn it is."""
    if now.must_repeat:
        is_running = running is not None and running.name == now.must_repeat
        doing = "is running" if is_running else "has no result yet and must be repeated"
        raise errors.IllegalStateError(
            f"{name}() is not possible in the state {now.state.name}: {now.must_repeat}() {doing}"
        )
    if now.state in allowed:
        return
    if now.error is not None:
        if isinstance(now.error, _FENCED):
            raise copy.copy(now.error)
        text = advised(str(now.error), _ADVICE[now.state])
        raise errors.KafkaError(
            f"{name}() is not possible, because the producer is in an error state: {text}"
        ) from now.error
    advice = _ADVICE[now.state]
    if now.state is State.READY and name == "init_transactions":
        advice = "it is needed once only; begin_transaction() begins a transaction"
    ended = f" (the last transaction was {now.ended})" if now.state is State.READY and now.ended else ""
    raise errors.IllegalStateError(f"{name}() is not possible in the state {now.state.name}{ended}; {advice}")


def late(now: Facts, name: str) -> errors.KafkaError:
    """Return the error of a call whose transaction has ended before its turn, and another one has begun."""
    return errors.IllegalStateError(
        f"{name}() has done nothing: the transaction for which it was called has ended, and another one has begun "
        f"since (state {now.state.name}); call {name}() again if it is meant for that one"
    )


def lost() -> tuple[State, errors.KafkaError]:
    """Return the state and the error of a transaction whose sender is lost."""
    return State.ABORTABLE_ERROR, errors.SenderUnavailableError(
        "the transaction is lost, because its sender has ended together with its supervisor, or has detached this "
        "process; call abort_transaction(), and repeat the transaction"
    )


def unknown_result() -> tuple[State, errors.KafkaError]:
    """Return the state and the error of a commit whose sender lives, and this process does not learn the result."""
    text = f"{_NOT_KNOWN}, because this process has left the sender meanwhile; {_LOOK}"
    return State.FATAL_ERROR, errors.KafkaError(advised(text, _ADVICE[State.FATAL_ERROR]))


def failed_record(code: int, what: str) -> tuple[State, errors.KafkaError]:
    """Return the state and the error of a transaction of which a record has failed with a code."""
    state = State.FATAL_ERROR if code in FATAL_FOR_TRANSACTIONS else State.ABORTABLE_ERROR
    text = f"{what}: {errors.name_for_code(code)}, {errors.for_code(code).message}"
    return state, _error(code, advised(text, _ADVICE[state]))


def unsent(error: errors.KafkaError) -> tuple[State, errors.KafkaError]:
    """Return the state and the error of a transaction of which a record was not queued, because of an error."""
    state = State.ABORTABLE_ERROR
    failed = errors.KafkaError(advised(f"a record of the transaction was not sent: {error}", _ADVICE[state]))
    failed.__cause__ = copy.copy(error)  # without a traceback, which would keep the producer alive
    return state, failed


def failed_answer(answer: Answer, what: str) -> tuple[State, errors.KafkaError]:
    """Return the state and the error after an answer that is not OK."""
    state = State.FATAL_ERROR if answer.kind == FATAL else State.ABORTABLE_ERROR
    return state, error_of(answer, what, _ADVICE[state])


def failed_commit(answer: Answer) -> str:
    """Return what has become of a transaction whose commit has failed.

    A producer may have been fenced after its commit: by a newer one, or, without KIP-890, by a sender that was lost
    after it had committed and raised the epoch. The coordinator does not tell in which order.
    """
    if answer.code not in _FENCED_CODES:
        return "the transaction was not committed"
    return f"{_NOT_KNOWN}; {_LOOK}"


def error_of(answer: Answer, what: str, advice: str = "") -> errors.KafkaError:
    """Return the error that an answer tells."""
    known = answer.code in errors.BROKER_CODES or answer.code in errors.CLIENT_CODES
    text = f"{what}: {errors.name_for_code(answer.code)}, " if known else f"{what}: "
    text += answer.message
    return _error(answer.code, advised(text, advice))


def advised(text: str, advice: str) -> str:
    """Return the text with the advice, unless it has this advice already."""
    return text if advice in text else f"{text}; {advice}"


def _error(code: int, text: str) -> errors.KafkaError:
    """Return the error of a code. A KafkaTimeoutError is the `__cause__` only: it would ask to repeat the call."""
    error = errors.for_code(code, text)
    if isinstance(error, errors.KafkaTimeoutError):
        cause, error = error, errors.KafkaError(text)
        error.__cause__ = cause
    return error
