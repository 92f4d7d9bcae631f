"""Checks the brokers: each bootstrap server, then the cluster as a sender of these settings sees it."""

import contextlib
import functools
from collections.abc import Generator, Iterator
from ipaddress import ip_address

from cyproducer.config.kinds import host_port
from cyproducer.config.settings import Settings
from cyproducer.doctor.finding import Finding, of_error, ok, problem, skipped, warning
from cyproducer.doctor.private_sender import private_sender
from cyproducer.doctor.reach import HandshakeError, InThread, connect, look_up, reach, tls_handshake
from cyproducer.error_table import describe
from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.cluster import Cluster, ClusterQueryError, describe_cluster
from cyproducer.observe.status import health

__all__ = ["check_brokers"]

CHECK = "brokers"
_SHOWN_PARTITIONS = 10


def check_brokers(settings: Settings, topic: str | None, timeout: float) -> Generator[Finding, None, str | None]:
    """Yield what is found, and return the id of the cluster if a broker has told it.

    timeout: seconds for each look-up, connection and answer. With the setting `sender`, ask through that sender.
    """
    if settings.sender is not None:
        yield skipped(CHECK, f"the sender at {settings.sender} has the settings for the brokers")
        return (yield from _check_cluster(settings, settings.sender, topic, timeout))
    any_usable = False
    for server in settings.bootstrap_servers if settings.proxy_url is None else (settings.proxy_url,):
        usable = yield from _check_server(settings, server, timeout)
        any_usable = any_usable or usable
    if not any_usable:
        what = "no bootstrap server" if settings.proxy_url is None else "the proxy cannot be reached, so no broker"
        yield skipped(CHECK, f"the cluster and its topics are not checked: {what} can be used")
        return None
    try:
        with private_sender(settings, timeout) as path:
            return (yield from _check_cluster(settings, path, topic, timeout))
    except SenderUnavailableError as error:
        yield of_error(CHECK, error)
        return None


# ---------------------------------------------------------------- bootstrap servers


def _check_server(settings: Settings, server: str, timeout: float) -> Generator[Finding, None, bool]:
    """Yield what is found of a bootstrap server, or of the proxy, and return whether it can be used."""
    host, port = host_port(server.rpartition("/")[2])
    try:
        targets = look_up(host, port, timeout)
    except OSError as error:
        advice = "check the name in the settings, /etc/hosts and /etc/resolv.conf of this host"
        yield problem(CHECK, f"{server}: the name {host} cannot be looked up ({error})", advice)
        return False
    attempts = [connect(target, timeout) for target in targets]
    with contextlib.ExitStack() as stack:
        made = [attempt for attempt in attempts if attempt.sock is not None]
        for attempt in made:
            assert attempt.sock is not None
            stack.enter_context(attempt.sock)
        lost = [attempt for attempt in attempts if attempt.sock is None]
        failed = ", ".join(f"{attempt.address} ({attempt.error})" for attempt in lost)
        if not made:
            advice = "check that the server runs, its port, and the firewalls between this host and the broker"
            yield problem(CHECK, f"{server}: no address can be reached: {failed}", advice)
            return False
        shown = ", ".join(f"{attempt.address} ({attempt.ms:.1f} ms)" for attempt in made)
        yield ok(CHECK, f"{server}: connected to {shown}")
        # The name localhost often has ::1 too, where few brokers listen. It is refused at once.
        if not all(ip_address(attempt.address).is_loopback for attempt in lost):
            advice = "the sender tries all addresses; remove these from the name, or let the broker listen there"
            yield warning(CHECK, f"{server}: not reached: {failed}", advice)
        if settings.proxy_url is not None or not settings.security_protocol.endswith("SSL"):
            return True
        if settings.client_dns_lookup != "use_all_dns_ips":
            yield skipped(CHECK, f"{server}: TLS is checked by the sender, since it looks up the canonical name")
            return True
        assert made[0].sock is not None
        try:
            yield ok(CHECK, f"{server}: {tls_handshake(made[0].sock, host, settings)}")
        except HandshakeError as error:
            yield of_error(CHECK, f"{server}: {error}")
            return False
        return True


# ---------------------------------------------------------------- the cluster


def _check_cluster(
    settings: Settings, path: str, topic: str | None, timeout: float
) -> Generator[Finding, None, str | None]:
    """Yield what a sender sees, and return the id of the cluster."""
    try:
        cluster = describe_cluster(path, topic, timeout)
    except ClusterQueryError as error:
        yield of_error(CHECK, error)
        return None
    except SenderUnavailableError as error:
        why = _last_error(path, timeout)
        if why or settings.sender is not None:
            yield of_error(CHECK, why or error)
        else:
            advice = "check the port and security_protocol, or give a longer --timeout"
            yield problem(CHECK, f"no broker has answered within {timeout:g} s", advice)
        return None
    if settings.sender is None and settings.security_protocol.startswith("SASL"):
        yield ok(CHECK, f"the brokers accept the credentials ({settings.sasl_mechanism})")
    yield ok(CHECK, f"cluster {cluster.cluster_id or 'without an id'} with {_count(len(cluster.brokers), 'broker')}")
    if settings.proxy_url is None:
        yield from _check_addresses(cluster, timeout)
    else:
        yield skipped(CHECK, "the addresses of the brokers are not checked from here: the proxy connects to them")
    if topic is None:
        yield skipped(CHECK, "no topic is checked; name one with --topic")
    else:
        yield _check_topic(cluster, topic)
    return cluster.cluster_id


def _last_error(path: str, timeout: float) -> str:
    """Return why the sender cannot use the brokers; "" if it does not say."""
    try:
        return str(health(path, timeout)[0]["last_error"] or "")
    except SenderUnavailableError:
        return ""


def _check_addresses(cluster: Cluster, timeout: float) -> Iterator[Finding]:
    """Connect to the address that each broker advertises: clients use it for everything but the first request."""
    running = [InThread(functools.partial(reach, host, port, timeout)) for _, host, port in cluster.brokers]
    for (broker_id, host, port), thread in zip(cluster.brokers, running, strict=True):
        why = thread.result()
        if not why:
            yield ok(CHECK, f"broker {broker_id} advertises {host}:{port}, which can be reached")
            continue
        yield problem(
            CHECK,
            f"broker {broker_id} advertises {host}:{port}, which cannot be reached from here: {why}",
            "correct advertised.listeners of this broker, or let this host look up and reach that address",
        )


def _check_topic(cluster: Cluster, topic: str) -> Finding:
    if cluster.topic_error:
        return of_error(CHECK, f"topic {topic}: {describe(cluster.topic_error)}")
    without = [number for number, leader in sorted(cluster.leaders.items()) if leader < 0]
    if without:
        some = ", ".join(map(str, without[:_SHOWN_PARTITIONS])) + (", ..." if len(without) > _SHOWN_PARTITIONS else "")
        advice = "see which brokers have their replicas, and start these brokers"
        text = f"topic {topic}: {len(without)} of {len(cluster.leaders)} partitions have no leader: {some}"
        return problem(CHECK, text, advice)
    return ok(CHECK, f"topic {topic} has {_count(len(cluster.leaders), 'partition')}, each with a leader")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
