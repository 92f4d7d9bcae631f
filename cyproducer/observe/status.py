"""Requests the status of this user's senders, or stops one."""

import math
import os
from typing import Any

from cyproducer import metric_table
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.poll import wait_readable
from cyproducer.host.rendezvous import RendezvousError, existing_directories, senders_in
from cyproducer.observe import failures
from cyproducer.observe.requests import ANSWER_S, NoListenerError, connect, request, request_document
from cyproducer.shm import system_clock

__all__ = ["ended_with_failures", "health", "senders", "status", "stop"]


def senders() -> list[str]:
    """Return the sockets of the senders described in this user's runtime directories, whether they live or not.

    Create no directory. Raise SenderUnavailableError if CYPRODUCER_RUNTIME_DIR names one that cannot be used.
    """
    return [description["socket"] for directory in _directories() for description in senders_in(directory)]


def _directories() -> list[str]:
    try:
        return existing_directories()
    except RendezvousError as error:
        raise SenderUnavailableError(str(error)) from None


def status(path: str | None = None, timeout: float = ANSWER_S) -> list[dict[str, Any]]:
    """Return the status of every living sender of this user, or of the one at `path`.

    The result is a list of `{socket, version, log, cluster_id, bootstrap_servers, client_id, sender_pid,
    supervisor_pid, started_at, restarts, totals_since, front_ends: [{attach_id, pid, uid, app, client_id,
    buffer_memory, buffer_in_use, records_sent, oldest_unacked_ms, blocked_ms}], transactions: [{transactional_id, app,
    phase, phase_ms, failed, participants}], connections: [{broker_id, host, port, state, in_flight}], totals: {records,
    bytes, batches, requests, retries, errors}, metrics, host_metrics, ledger: [{app, topic, cause, count, first,
    last}], last_error}`.

    `metrics` is {group: {name: number or None}} as KafkaProducer.metrics() returns it, for all processes that use the
    sender. `host_metrics` is the group "producer-metrics" for all senders of the result together. None means that a
    metric has no value.

    Times are seconds since 1970. `started_at` is the start of the first sender, `totals_since` that of the present one:
    the totals of a sender that was killed are lost. `log` is a path, or None for standard error. `cluster_id` is None
    until a broker has reported it. A sender without a supervisor has `supervisor_pid` None and `restarts` 0.

    Raise SenderUnavailableError if there is no sender at `path`, or if a sender that accepted the connection does not
    answer within `timeout` seconds.
    """
    if path is not None:
        return _with_metrics([_ask(path, timeout)])
    found = []
    for known in senders():
        try:
            found.append(_ask(known, timeout))
        except NoListenerError:
            continue  # it was killed: a later sender will remove its files
    return _with_metrics(found)


def _with_metrics(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the counts in the senders' answers by the metrics that follow from them, of senders of any version."""
    counts = [metric_table.of_this_version(answer.pop("counts", None) or metric_table.nothing()) for answer in answers]
    host = metric_table.groups(metric_table.merged_counts(counts))["producer-metrics"] if counts else {}
    for answer, own in zip(answers, counts, strict=True):
        answer["metrics"] = {group: _for_json(values) for group, values in metric_table.groups(own).items()}
        answer["host_metrics"] = _for_json(host)
    return answers


def _for_json(values: dict[str, float]) -> dict[str, float | None]:
    """Return the values with None for NaN, which JSON does not have."""
    return {name: None if math.isnan(number) else number for name, number in values.items()}


def ended_with_failures() -> list[dict[str, Any]]:
    """Return what ended senders of this user could not deliver in the last day.

    The result is a list of `{socket, version, log, bootstrap_servers, pid, ledger}`, the latest failure first. `ledger`
    is as in status(). A living sender reports its failures in its status. Raise SenderUnavailableError as senders()
    does.
    """
    found = []
    for directory in _directories():
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            left = failures.read(os.path.join(directory, name)) if name.endswith(".failures") else None
            if left is not None and not _is_served(str(left.get("socket"))):
                known = {key: left.get(key) for key in ("socket", "version", "log", "bootstrap_servers", "pid")}
                found.append({**known, "ledger": left["rows"]})
    return sorted(found, key=lambda each: -max(row["last"] for row in each["ledger"]))


def _is_served(path: str) -> bool:
    try:
        connect(path).close()
    except NoListenerError:
        return False
    except SenderUnavailableError:
        pass
    return True


def health(path: str | None = None, timeout: float = ANSWER_S) -> list[dict[str, Any]]:
    """Return in short whether every living sender of this user works, or the one at `path`. For probes.

    The result is a list of `{socket, ok, state, version, sender_pid, supervisor_pid, uptime_s, restarts,
    brokers_connected, front_ends, undelivered, last_error}`. `state` is "starting" or "running" (then `ok` is true),
    "disconnected" (no broker can be used), "draining" (it ends), or "silent": it has not answered within `timeout`
    seconds. Of a silent one, there are only `socket`, `ok`, `state` and `last_error`.

    Raise SenderUnavailableError if there is no sender at `path`.
    """
    found = []
    for known in senders() if path is None else [path]:
        try:
            found.append({"socket": known, **_ask_health(known, timeout)})
        except NoListenerError:
            if path is not None:
                raise
        except SenderUnavailableError as error:
            found.append({"socket": known, "ok": False, "state": "silent", "last_error": str(error)})
    return found


def _ask_health(path: str, timeout: float) -> dict[str, Any]:
    sock, answer, fds = request(path, {"op": "health"}, timeout)
    control_messages.discard(fds)
    sock.close()
    if answer is None:
        raise NoListenerError(f"the sender at {path} is ending")
    if "state" not in answer:
        raise SenderUnavailableError(f"the sender at {path} sent no health: {answer.get('message')}")
    return answer


def stop(path: str, timeout: float | None = None) -> int:
    """Stop the sender at `path`: it drains and ends. Wait for its end, at most `timeout` seconds (None: no limit).

    Return how many records it could not deliver of processes that have ended or closed their producer. They are lost,
    unless they were in flight.

    Raise SenderUnavailableError if there is no sender, if it refuses, or if it has not ended in time.
    """
    deadline = None if timeout is None else system_clock.monotonic() + timeout
    sock, answer, fds = request(path, {"op": "stop"}, ANSWER_S)
    control_messages.discard(fds)
    with sock:
        if answer is None:
            return 0
        if not answer.get("ok"):
            raise SenderUnavailableError(f"the sender at {path} refuses to end: {answer.get('message')}")
        lost = 0
        while True:
            left = None if deadline is None else deadline - system_clock.monotonic()
            if not wait_readable([sock.fileno()], left):
                text = f"the sender at {path} has not ended within {timeout} s: it still delivers records, then it ends"
                raise SenderUnavailableError(text)
            try:
                answer = control_messages.receive_alone(sock)
            except ConnectionError:
                return lost
            except (OSError, control_messages.HandshakeError) as error:
                raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from error
            if answer is None:
                return lost
            if answer.get("op") == "lost" and isinstance(answer.get("records"), int):
                lost = answer["records"]


def _ask(path: str, timeout: float) -> dict[str, Any]:
    return request_document(path, {"op": "status"}, timeout, "status")
