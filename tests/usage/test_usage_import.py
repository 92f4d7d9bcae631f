"""Tests that a producer that is only imported starts no process, opens nothing and makes no file."""

import copy
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from devkafka.node import free_ports
from support.process import run_script, sender_processes, start_script

from cyproducer import KafkaProducer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

IMPORTS = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import wsgi_app
    print("imported", wsgi_app.producer, flush=True)
    sys.stdin.readline()
"""

COLLECTS = """
    import sys
    import pytest
    class Hold:
        def pytest_collection_finish(self, session):
            print("collected", len(session.items), flush=True)
            sys.stdin.readline()
    sys.exit(pytest.main(["--collect-only", "-qq", "-s", "-p", "no:cacheprovider", sys.argv[1]], plugins=[Hold()]))
"""


def assert_nothing_started(pid: int, runtime_dir: Path) -> None:
    """Check from outside, by what the kernel reports, that the process has started nothing."""
    process = psutil.Process(pid)
    assert process.children(recursive=True) == []
    assert process.net_connections("all") == []
    assert process.num_threads() == 1
    targets = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    assert [t for t in targets if t.startswith(("socket:", "/memfd:", "anon_inode:"))] == []
    assert "/memfd:cyproducer" not in Path(f"/proc/{pid}/maps").read_text()
    assert sender_processes(runtime_dir) == []
    assert list(runtime_dir.iterdir()) == []


def test_an_imported_producer_starts_nothing(runtime_dir: Path) -> None:
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    with start_script(IMPORTS, EXAMPLES, env={"KAFKA": servers}) as process:
        line = process.stdout.readline()
        assert line.startswith("imported"), process.stderr.read()
        assert "not attached" in line
        assert_nothing_started(process.pid, runtime_dir)
        out, err = process.communicate("\n", timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
    assert list(runtime_dir.iterdir()) == []


def test_collecting_tests_around_a_producer_starts_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(
        '"""A test module as users write them."""\n'
        "from cyproducer import KafkaProducer\n"
        f'producer = KafkaProducer(bootstrap_servers="127.0.0.1:{free_ports(1)[0]}")\n'
        "def test_something():\n"
        '    producer.send("topic", b"value")\n'
    )
    with start_script(COLLECTS, tmp_path, cwd=tmp_path) as process:
        while (line := process.stdout.readline()) != "collected 1\n":
            assert line, process.stderr.read()
        assert_nothing_started(process.pid, runtime_dir)
        process.communicate("\n", timeout=30)
        assert process.returncode == 0


@pytest.mark.parametrize(
    "ending",
    [KafkaProducer.close, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["closed", "copied", "pickled"],
)
def test_a_producer_that_was_never_used_leaves_no_trace(
    runtime_dir: Path, ending: Callable[[KafkaProducer], object]
) -> None:
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{free_ports(1)[0]}")
    producer.flush(1)
    ending(producer)
    assert not producer.bootstrap_connected()
    assert list(runtime_dir.iterdir()) == []


def test_a_free_threaded_python_is_refused_at_the_import() -> None:
    """Appends need the GIL. The test gives this Python the ABI flags of such a build."""
    script = """
        import sys
        sys.abiflags += "t"
        try:
            import cyproducer
        except ImportError as error:
            print(error)
        print([name for name in sys.modules if name.endswith(".native")])
    """
    error, loaded = run_script(script).stdout.splitlines()
    assert "needs the GIL" in error
    assert f"use the build of Python {sys.version_info.major}.{sys.version_info.minor} that has the GIL" in error
    assert loaded == "[]"


def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on() -> None:
    """Either may come first: a native module loaded by one interpreter would be lost for the other."""
    script = """
        try:
            import _interpreters as interpreters  # Python 3.13
        except ImportError:
            import _xxsubinterpreters as interpreters
        TEXT = '''if True:
            import sys
            sys.path[:] = {path}
            from cyproducer import errors
            try:
                from cyproducer import {name}
            except errors.UnsupportedPlatformError as error:
                print("main interpreter" in str(error), flush=True)
        '''
        def refused(name):
            made = interpreters.create()
            interpreters.run_string(made, TEXT.format(path=sys.path, name=name))
            interpreters.destroy(made)
        import sys
        refused("KafkaProducer")
        refused("wait")
        from cyproducer import KafkaProducer
        refused("KafkaProducer")
        print(KafkaProducer(bootstrap_servers="127.0.0.1:9").bootstrap_connected())
    """
    assert run_script(script).stdout == "True\nTrue\nTrue\nFalse\n"
