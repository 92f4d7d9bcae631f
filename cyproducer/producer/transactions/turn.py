"""Waits until a call of a transactional method has its turn, and until no send of the transaction is running."""

from cyproducer import errors
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.native import RunningSend, TransactionState
from cyproducer.producer.transactions.waits import Producer

__all__ = ["await_sends", "await_turn"]

#: After this time a wait looks again: the event loop of another call, or of a send, may have stopped.
_LOOK_S = 1.0


async def await_turn(state: TransactionState, producer: Producer, call: Call) -> None:
    """Wait until no other call is running. Raise the errors of Call.check().

    Raise IllegalStateError if that could not end: in a callback, and inside of a send or a call of the same thread.
    """
    delivery = producer._session.delivery
    if delivery is not None and delivery.is_current_thread():
        raise errors.IllegalStateError(
            f"{call.name}() in a callback would wait for callbacks that this thread has to run; call it on another "
            "thread"
        )
    _refuse_own_send(state, call)
    while not state.take_turn(call):
        waiter = state.waiter_of(call)
        running = state.running
        if running is None:
            continue
        if running.is_stranded():
            state.displace(running)
            continue
        _refuse_inside(running, call)
        if await call.waits.readable(waiter.fd, call.left(_LOOK_S)):
            waiter.clear()
        call.check("another call for the same transaction is running")


def _refuse_inside(running: Call, call: Call) -> None:
    """Raise IllegalStateError if the running call cannot go on while this one waits."""
    if running.thread != call.thread or (running.is_async and call.is_async):
        return
    if running.is_async:
        raise errors.IllegalStateError(
            f"{call.name}() would block the event loop in which {running.name}() is running, and neither could end; "
            "await the running call first"
        )
    raise errors.IllegalStateError(f"{call.name}() is not possible inside of {running.name}() of the same thread")


def _refuse_own_send(state: TransactionState, call: Call) -> None:
    """Raise IllegalStateError if a send of this thread is running that cannot end while the call waits."""
    for send in state.running_sends():
        if send.thread == call.thread and (send.loop is None or (not call.is_async and send.loop.is_running())):
            raise errors.IllegalStateError(
                f"{call.name}() cannot wait for a send of the same thread: call it after send() has returned, and in "
                f"an event loop after `await producer.send_async(...)`, or use {call.name}_async()"
            )


async def await_sends(state: TransactionState, call: Call) -> None:
    """Wait until no send is running. Raise the errors of Call.check()."""
    while state.running_sends():
        waiter = state.waiter_of(call)
        for send in state.running_sends():
            _pass_over(send)
        if not state.running_sends():
            return
        if await call.waits.readable(waiter.fd, call.left(_LOOK_S)):
            waiter.clear()
        call.check("a send method of another thread is still running")


def _pass_over(send: RunningSend) -> None:
    """Do not wait for a send whose event loop does not run: it raises an error if it ever goes on."""
    if send.loop is None or send.loop.is_running():
        return
    send.passed_over = True
    if send.loop.is_running():  # it may have gone on before it was passed over
        send.passed_over = False
