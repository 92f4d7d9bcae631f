"""Says whether the wait of a send for metadata is over, and makes the errors of waits for metadata and memory.

The waits themselves are in retry.py.
"""

from cyproducer import errors
from cyproducer.producer.core.native import PERMANENT_ERRORS, Session


def ask_for(session: Session, topic: str, needed: int) -> None:
    """Read the published metadata and request metadata of `topic`, including partition `needed`, from the sender."""
    session.refresh_topics(topic)
    session.want_topic(topic, needed)


def metadata_over(session: Session, topic: str, needed: int) -> bool:
    """Return whether the topic has more than `needed` partitions, or the session has ended.

    If it returns False, new metadata wakes the waiter. Raise the topic's error if it is permanent: an invalid name
    or missing authorization. Raise SenderUnavailableError if the sender has no space for another topic.
    """
    session.topics.begin_wait()
    count, error = session.topics.state(topic)
    if count == 0 or not session.topics.is_read:
        # Another thread may have read this version of the metadata without looking for this topic.
        session.refresh_topics(topic)
        count, error = session.topics.state(topic)
    refusal = session.topics.take_refusal(topic) if session.alive and count <= needed else None
    if refusal is not None:
        raise errors.SenderUnavailableError(f"the sender refuses topic {topic!r}: {refusal}; nothing was queued")
    if error in PERMANENT_ERRORS:
        raise errors.for_code(error, f"topic {topic!r}: {errors.for_code(error).message}")
    return not session.alive or count > needed


def no_metadata(session: Session, topic: str, needed: int) -> errors.KafkaError:
    """Return the error for a topic or partition that is missing from the metadata after max_block_ms.

    The message is that of Kafka's Java producer, followed by the last error of the broker or the sender. The cause is
    the broker's error, or an UnknownPartitionError if the broker answers that the topic has fewer partitions.
    """
    count, error = session.topics.state(topic)
    limit = session.settings.max_block_ms
    if count == 0:
        text = f"Topic {topic} not present in metadata after {limit} ms."
    else:
        text = (
            f"Partition {needed} of topic {topic} with partition count {count} is not present in metadata "
            f"after {limit} ms."
        )
    cause = errors.for_code(error) if error else None
    if cause is not None:
        text += f" The broker's last answer: {errors.name_for_code(error)}, {cause.message}."
    elif session.topics.last_error:
        text += f" The sender's last error: {session.topics.last_error}."
    elif count:
        cause = errors.UnknownPartitionError()
    late = errors.KafkaTimeoutError(text)
    late.__cause__ = cause
    return late


def auth_failed(session: Session, topic: str) -> errors.KafkaError:
    """Return the error for a topic whose metadata the sender cannot get, because authentication fails."""
    return errors.AuthenticationFailedError(
        f"Topic {topic} not present in metadata: no broker can be used. {session.topics.last_error}. Nothing was queued"
    )


def no_memory(session: Session, max_block_s: float) -> errors.KafkaError:
    """Return the error for memory that did not become free within max_block_ms: a BufferExhaustedError.

    It is a SenderUnavailableError if the sender is ending and therefore accepts no new batches.
    """
    if session.released:
        return errors.SenderUnavailableError(
            f"the sender is ending, and has not ended within max_block_ms={round(max_block_s * 1000)}; nothing was "
            "queued; send again when it has ended, or raise max_block_ms"
        )
    total = session.settings.buffer_memory
    used = total - session.arena.buffer_available
    hint = "Send less at once, or raise buffer_memory or max_block_ms"
    if session.topics.last_error:
        hint += f". The sender's last error: {session.topics.last_error}"
    return errors.BufferExhaustedError(
        f"no memory became free within max_block_ms={round(max_block_s * 1000)}: {used} of "
        f"buffer_memory={total} bytes are not acknowledged by the broker; nothing was queued. {hint}"
    )
