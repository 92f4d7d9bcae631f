"""What send() may have to wait for before it can append: a session, a topic's metadata, memory.

The steps that the blocking and the asyncio way share, and the blocking way itself.
"""

import time
from typing import Any

from cyproducer import errors
from cyproducer.producer.waiter import Waiter
from cyproducer.producer.waiters import wait_until

HAVE_ROOM, NEED_MEMORY, NEED_SESSION, NEED_METADATA = 0, 1, 2, 4

_ASK_AGAIN_S = 1.0
_HOPELESS = (errors.InvalidTopicError.code, errors.TopicAuthorizationFailedError.code)


def ask_for(session: Any, topic: str) -> None:
    """Asks the sender for a topic's metadata, and looks at what is published already."""
    session.refresh_topics(topic)
    session.want_topic(topic)


def metadata_over(session: Any, topic: str, needed: int) -> bool:
    """Has the topic more than `needed` partitions now (or has the session ended)? Else we will be woken.

    Raises the errors of a topic that waiting cannot mend.
    """
    session.sleep_for_metadata()
    count, error = session.topic_state(topic)
    if count == 0 or not session.metadata_is_read:
        # Also what was read already: somebody else did, who did not look for this topic.
        session.refresh_topics(topic)
        count, error = session.topic_state(topic)
    if error in _HOPELESS:
        raise errors.for_code(error, f"topic {topic!r}: {errors.for_code(error).message}")
    return not session.alive or count > needed


def no_metadata(session: Any, topic: str, needed: int) -> errors.KafkaError:
    """The error for a topic or partition that did not show up in time: Java's text and the last answer."""
    count, error = session.topic_state(topic)
    limit = session.settings.max_block_ms
    if count == 0:
        text = f"Topic {topic} not present in metadata after {limit} ms."
    else:
        text = (
            f"Partition {needed} of topic {topic} with partition count {count} is not present in metadata "
            f"after {limit} ms."
        )
    if error:
        text += f" The broker's last answer: {errors.name_for_code(error)}, {errors.for_code(error).message}."
    elif session.last_error:
        text += f" The sender's last trouble: {session.last_error}."
    return errors.KafkaTimeoutError(text)


def wait_metadata(session: Any, topic: str, needed: int, deadline: float) -> None:
    """Blocks until the topic has more than `needed` partitions; at `deadline` it raises why not."""
    waiter = Waiter()
    session.metadata_waiters.add(waiter)
    try:
        while True:
            # Again and again: a sender that was replaced may have taken the wish to its grave.
            ask_for(session, topic)
            until = min(deadline, time.monotonic() + _ASK_AGAIN_S)
            if wait_until([session], waiter, lambda: metadata_over(session, topic, needed), until):
                return
            if time.monotonic() >= deadline:
                raise no_metadata(session, topic, needed)
    finally:
        session.metadata_waiters.discard(waiter)
        session.end_metadata_wait()


def enter_queue(session: Any, turn: Any) -> None:
    """Takes the last place in the queue for memory, unless `turn` has one; what is open becomes ready."""
    session.seal_all()
    if turn not in session.memory_queue:
        session.memory_queue.append(turn)


def leave_queue(session: Any, turn: Any) -> None:
    """Gives the place up; whoever is first then looks whether there is memory for him."""
    if session is None or turn not in session.memory_queue:
        return
    session.memory_queue.remove(turn)
    if session.memory_queue:
        session.memory_queue[0].notify()


def wait_memory(session: Any, turn: Waiter, deadline: float, max_block_s: float) -> None:
    """Blocks until memory came back and it is `turn`'s turn; BufferExhaustedError at `deadline`."""
    turn.wanted = 1
    enter_queue(session, turn)
    started = time.monotonic_ns()
    try:
        if not wait_until([session], turn, lambda: turn.wanted <= 0 or not session.alive, deadline):
            raise no_memory(session, max_block_s)
    finally:
        session.add_blocked(time.monotonic_ns() - started)


def no_memory(session: Any, max_block_s: float) -> errors.KafkaError:
    """The error for memory that did not come back in time."""
    total = session.settings.buffer_memory
    hint = "Send less at once, or raise one of them"
    if session.last_error:
        hint = f"The sender's last trouble: {session.last_error}"
    return errors.BufferExhaustedError(
        f"no memory within max_block_ms={round(max_block_s * 1000)}: {total - session.buffer_available} of "
        f"buffer_memory={total} bytes wait for the broker; nothing was queued. {hint}"
    )
