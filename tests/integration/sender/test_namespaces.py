"""Tests processes in other namespaces, cgroups or root directories: which share a sender, and where records go."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kfake.scripted_broker import ScriptedBroker
from support.confined import namespaces, run_confined, start_confined
from support.process import sender_processes, wait_until
from support.supervised import Foreground

TESTS = str(Path(__file__).resolve().parents[2])
PORT = 39092

WHERE = """
    import os, sys
    cgroup = sys.argv[1]
    if cgroup:
        with open(cgroup + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    from cyproducer.config.settings import Settings
    from cyproducer.producer.channel.address import Address
    print(Address(Settings.parse(bootstrap_servers="127.0.0.1:9")).find()[0].socket)
"""
#: Options of unshare(1), and whether a process started with them shares the sender of one outside.
MATRIX = {
    "none": ((), True),
    "pid": (("--pid", "--fork", "--mount-proc"), False),
    "mount": (("--mount",), False),
    "network": (("--net",), False),
    "time": (("--time", "--fork"), False),
    "cgroup": (("--cgroup",), False),
    "user": (("--user", "--map-root-user"), True),
    "ipc and uts": (("--ipc", "--uts"), True),
}


def place(options: tuple[str, ...], cgroup: str = "") -> str:
    """Return the socket of the sender that a process with these options looks for."""
    found, out, err = run_confined(namespaces(*options), WHERE, cgroup)
    assert found == 0, err
    return out


@pytest.mark.parametrize("kind", MATRIX)
def test_which_namespaces_separate_senders(kind: str) -> None:
    """The user stays root in each of them: to the kernel the users are the same."""
    options, shared = MATRIX[kind]
    assert (place(options) == place(())) is shared


@pytest.fixture
def cgroup() -> Iterator[str]:
    """Make a cgroup; the test needs root and a writable hierarchy."""
    for root in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"):
        path = f"{root}/cyproducer-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            os.mkdir(path)
            if os.path.exists(f"{path}/cgroup.procs"):
                break
            os.rmdir(path)
    else:
        pytest.skip("no cgroup can be made here; tests/unit/host/test_rendezvous.py has the names")
    yield path
    wait_until(lambda: not Path(path, "cgroup.procs").read_text(), 10, "the end of the cgroup's processes")
    os.rmdir(path)


def test_another_cgroup_separates_senders(cgroup: str) -> None:
    assert place((), cgroup) != place(())


# ---------------------------------------------------------------- two brokers at one address

BROKER = f"""
    import os, sys
    sys.path.insert(0, {TESTS!r})
    from kfake.scripted_broker import ScriptedBroker
    from support.confined import loopback_up
    from cyproducer import KafkaProducer, errors

    def send(text, **settings):
        producer = KafkaProducer(sender_idle_timeout_ms=200, max_block_ms=20_000, **settings)
        try:
            producer.send("t", text).result(30)
            print("sent", flush=True)
        except errors.KafkaError as error:
            print(type(error).__name__, error, flush=True)
        return producer
"""

# A broker and a producer in one network namespace; both namespaces have the broker's address.
NETWORK = (
    BROKER
    + f"""
    loopback_up()
    with ScriptedBroker(partitions=1, nodes=1, port={PORT}) as broker:
        print("up", flush=True)
        sys.stdin.readline()
        producer = send(sys.argv[1].encode(), bootstrap_servers=broker.bootstrap_servers)
        sys.stdin.readline()
        producer.close()
        print(broker.values(0), flush=True)
"""
)


def test_two_network_namespaces_with_one_address(runtime_dir: Path) -> None:
    """Each record reaches the broker of its producer's namespace, though both share a runtime directory."""
    check_two_brokers(namespaces("--net"), namespaces("--net"), NETWORK, runtime_dir)


# The broker's name means another address in each mount namespace.
NAMES = (
    BROKER
    + f"""
    address = sys.argv[2]
    hosts = os.path.join(os.environ["CYPRODUCER_RUNTIME_DIR"], "hosts." + sys.argv[1])
    with open(hosts, "w") as file:
        file.write(address + " broker.test\\n")
    import subprocess
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    with ScriptedBroker(partitions=1, nodes=1, host=address, port={PORT}) as broker:
        print("up", flush=True)
        sys.stdin.readline()
        producer = send(sys.argv[1].encode(), bootstrap_servers="broker.test:{PORT}")
        sys.stdin.readline()
        producer.close()
        print(broker.values(0), flush=True)
    os.unlink(hosts)
"""
)


def test_two_mount_namespaces_with_one_name(runtime_dir: Path) -> None:
    """A broker's name may mean another address where /etc/hosts is another file."""
    check_two_brokers(namespaces("--mount"), namespaces("--mount"), NAMES, runtime_dir)


def check_two_brokers(first: list[str], second: list[str], script: str, runtime_dir: Path) -> None:
    with contextlib.ExitStack() as ended:
        # Addresses of this run: another run may go on beside it.
        network = f"127.{1 + os.getpid() % 250}.{1 + os.getpid() // 250 % 250}"
        one = ended.enter_context(start_confined(first, script, "A", f"{network}.2"))
        two = ended.enter_context(start_confined(second, script, "B", f"{network}.3"))
        for process in (one, two):
            assert process.stdout.readline() == "up\n", process.stderr.read()
        for process in (one, two):  # one after the other: the second would find the sender of the first
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "sent\n", process.stderr.read()
        results = [process.communicate("\n", timeout=30) for process in (one, two)]
    assert [out for out, _ in results] == ["[b'A']\n", "[b'B']\n"], results
    wait_until(lambda: not sender_processes(runtime_dir), 20, "the end of both senders")


# ---------------------------------------------------------------- a sender given by name

NAMED = (
    BROKER
    + """
    send(b"named", sender=sys.argv[1], **({"bootstrap_servers": sys.argv[2]} if sys.argv[2] else {})).close()
"""
)


@pytest.mark.parametrize("given", ["", "bootstrap_servers"])
def test_a_named_sender_of_another_network_namespace(given: str, foreground: Callable[..., Foreground]) -> None:
    """A producer without brokers uses the sender's brokers; a producer that names brokers may mean other ones."""
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        sender = foreground(broker.bootstrap_servers).ready()
        servers = broker.bootstrap_servers if given else ""
        found, out, err = run_confined(namespaces("--net"), NAMED, sender.socket, servers)
        assert found == 0, err
        if given:
            assert out.startswith("KafkaConfigurationError")
            assert "another network namespace" in out
            assert "leave bootstrap_servers out" in out
        else:
            assert out == "sent\n"
        assert broker.values(0) == ([] if given else [b"named"])


TAKE_OVER = """
    import sys
    from cyproducer import errors
    from cyproducer.foreground import run_sender
    try:
        run_sender({"bootstrap_servers": sys.argv[2]}, sys.argv[1], replace=True)
    except errors.KafkaError as error:
        print(type(error).__name__, error)
"""


def test_a_sender_is_not_replaced_from_another_network_namespace(foreground: Callable[..., Foreground]) -> None:
    """The batches in flight would go to other brokers."""
    sender = foreground("127.0.0.1:9").ready()
    found, out, err = run_confined(namespaces("--net"), TAKE_OVER, sender.socket, "127.0.0.1:9")
    assert found == 0, err
    assert out.startswith("KafkaConfigurationError")
    assert "another network namespace" in out
    assert sender.process.poll() is None
