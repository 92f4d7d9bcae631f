"""Says which sender a producer uses, and why it does not share the other senders of the same cluster."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cyproducer.config.settings import Settings
from cyproducer.doctor.finding import Finding, of_error, ok, problem, warning
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import rendezvous
from cyproducer.host.credentials import tag
from cyproducer.host.rendezvous import RendezvousError, existing_directories, of_sender, senders_in
from cyproducer.observe.differences import Difference, bootstrap_servers, differences
from cyproducer.observe.requests import NoListenerError
from cyproducer.observe.status import health, status
from cyproducer.shm.native import LAYOUT_VERSION

__all__ = ["check_sharing"]

CHECK = "sharing"
_GROUP = "sender_group"
#: What to do about a part of an identity that is no setting.
_ADVICE = {
    "cgroup": "a sender serves one service, Slurm step or container; for several, start `cyproducer sender --socket "
    "PATH` and give producers sender=PATH",
    "credentials": "give all processes the same credentials",
    "layout": "install the same version of cyproducer for all processes",
}
_OF_NAMESPACES = (
    "a sender serves the processes of the same namespaces and root directory; for several containers, start "
    "`cyproducer sender --socket PATH` in a directory that they share, and give producers sender=PATH"
)


class _Sender(NamedTuple):
    """A living sender: its description, and what it says (None if it does not answer)."""

    description: dict[str, Any]
    status: dict[str, Any] | None

    @property
    def socket(self) -> str:
        return str(self.description["socket"])

    @property
    def cluster_id(self) -> str | None:
        return self.status["cluster_id"] if self.status is not None else None

    @property
    def identity(self) -> dict[str, Any]:
        identity = self.description.get("identity")
        return identity if isinstance(identity, dict) else {}

    def __str__(self) -> str:
        if self.status is None:
            return f"the sender at {self.socket}, which does not answer,"
        number = len(self.status["front_ends"])
        return f"the sender with PID {self.status['sender_pid']} ({number} process{'' if number == 1 else 'es'})"


def check_sharing(settings: Settings | None, cluster_id: str | None, timeout: float) -> Iterator[Finding]:
    """Yield what is found. `settings` and `cluster_id`: None if they are not known.

    timeout: seconds for the answer of each sender. Nothing is started or created.
    """
    try:
        living = list(_living(timeout))
    except (RendezvousError, SenderUnavailableError) as error:
        yield of_error(CHECK, error)
        return
    if settings is None:
        yield from _compare_all(living)
    elif settings.sender is not None:
        yield _named(settings.sender, timeout)
    else:
        yield from _compare_with(living, settings, cluster_id)
    yield from _disconnected(living, timeout)


def _disconnected(living: Sequence[_Sender], timeout: float) -> Iterator[Finding]:
    """Yield the senders that can use no broker now."""
    for each in living:
        if each.status is None:  # it does not answer
            continue
        try:
            [found] = health(each.socket, timeout)
        except NoListenerError:
            continue
        if found["state"] == "disconnected":
            command = f"cyproducer doctor --bootstrap-servers {','.join(bootstrap_servers(each.description))}"
            text = f"{each} can use no broker: {found['last_error']}"
            yield problem(CHECK, text, f"check these brokers, with your security settings: {command}")


def _living(timeout: float) -> Iterator[_Sender]:
    for directory in existing_directories():
        for description in senders_in(directory):
            try:
                yield _Sender(description, status(description["socket"], timeout)[0])
            except NoListenerError:
                continue
            except SenderUnavailableError:
                yield _Sender(description, None)


def _named(path: str, timeout: float) -> Finding:
    try:
        found = _Sender({"socket": path}, status(path, timeout)[0])
    except NoListenerError as error:
        return of_error(CHECK, f"{error}; start its service, or `cyproducer sender --socket {path}`")
    except SenderUnavailableError as error:
        return of_error(CHECK, error)
    return ok(CHECK, f"a producer with these settings uses {found}")


def _compare_all(living: Sequence[_Sender]) -> Iterator[Finding]:
    """Compare each sender with the first one of the same cluster."""
    if not living:
        yield ok(CHECK, "no sender of this user is running")
    firsts: list[_Sender] = []
    for each in living:
        first = next(
            (one for one in firsts if _is_same_cluster(one, each.cluster_id, bootstrap_servers(each.description))), None
        )
        if first is None:
            firsts.append(each)
            yield ok(CHECK, f"{each} serves {', '.join(bootstrap_servers(each.description))}")
        else:
            yield _differing(each, first.identity, f"serves the same cluster as {first}")


def _compare_with(living: Sequence[_Sender], settings: Settings, cluster_id: str | None) -> Iterator[Finding]:
    places = {place.socket for place in _places(settings)}
    used = [each for each in living if each.socket in places]
    for each in used:
        yield ok(CHECK, f"a producer with these settings uses {each}")
    if not used:
        yield ok(CHECK, "no sender serves a producer with these settings: the first one starts a sender")
    ours = _identity(settings, used[0].socket if used else None)
    servers = ours["settings"]["bootstrap_servers"]
    for each in living:
        if each not in used and _is_same_cluster(each, cluster_id, servers):
            yield _differing(each, ours, "serves the same cluster, but no producer with these settings")


def _places(settings: Settings) -> Iterator[rendezvous.Rendezvous]:
    """Yield the files of the sender of these settings in each runtime directory where it can be."""
    for directory in existing_directories():
        yield of_sender(directory, _identity(settings, directory + "/"))


def _identity(settings: Settings, path: str | None) -> dict[str, Any]:
    """Return the identity of the sender of these settings in the directory of `path` (None: the first one there is).

    If the directory has no key for credentials, no sender there has any.
    """
    secrets = settings.secrets()
    directory = os.path.dirname(path) if path is not None else next(iter(existing_directories()), "")
    try:
        credentials = tag(directory, secrets, make=False)
    except RendezvousError:
        credentials = "new"
    return rendezvous.identity(LAYOUT_VERSION, settings.sender_settings(), credentials=credentials)


def _is_same_cluster(sender: _Sender, cluster_id: str | None, servers: Sequence[str]) -> bool:
    if cluster_id is not None and sender.cluster_id is not None:
        return cluster_id == sender.cluster_id
    return not set(servers).isdisjoint(bootstrap_servers(sender.description))


def _differing(sender: _Sender, ours: Mapping[str, Any], text: str) -> Finding:
    """Return in what a sender differs from the identity `ours`, and what to do about it."""
    found = differences([ours, sender.identity])
    if not found:
        return ok(CHECK, f"{sender} {text}; producers use it with sender={sender.socket}")
    parts = "; ".join(map(_shown, found))
    text = f"{sender} {text}. They differ in: {parts}"
    if any(each.name == _GROUP for each in found):
        return ok(CHECK, text)
    return warning(CHECK, text, "; ".join(dict.fromkeys(map(_advice, found))))


def _shown(difference: Difference) -> str:
    one, other = difference.values
    return f"{difference.name} ({one} and {other})" if one != other else difference.name  # both are hidden


def _advice(difference: Difference) -> str:
    if difference.is_setting:
        return "to share a sender, give all processes the same value of each of these settings"
    return _ADVICE.get(difference.name, _OF_NAMESPACES)
