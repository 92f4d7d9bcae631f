"""Tests the example for Prefect with a real server: the tasks run in processes and in threads."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devkafka.node import free_ports
from programs import EXAMPLES, program, wait_for_answer
from support.connections import ConnectionWatch
from support.consumer import ReadRecords
from support.process import senders, start_script

if importlib.util.find_spec("prefect") is None:
    raise pytest.UsageError("these tests need Prefect: tox -e job_runners")

IN_THREADS = """
    import sys
    from prefect.task_runners import ThreadPoolTaskRunner
    from prefect_flow import publish_all

    in_threads = publish_all.with_options(task_runner=ThreadPoolTaskRunner(max_workers=4))
    print(f"{in_threads(*sys.argv[1:3])} records written")
"""


@pytest.fixture
def prefect(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Run Prefect's server; yield the environment of a flow."""
    monkeypatch.syspath_prepend(EXAMPLES)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/api"
    environment |= {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_API_REQUEST_TIMEOUT": "120",
    }
    log = tmp_path / "server"
    with program(log, environment, "prefect", "server", "start", "--host", "127.0.0.1", "--port", port) as server:
        wait_for_answer(server, f"{url}/health", log)
        yield environment


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where", ["processes", "threads"])
def test_a_flow_and_its_tasks_share_one_sender(
    where: str,
    prefect: dict[str, str],
    topic: str,
    runtime_dir: Path,
    tmp_path: Path,
    arrived: Callable[..., ReadRecords],
    attached: Callable[[], set[int]],
) -> None:
    """The process of the flow publishes, too. Threads use its producer."""
    script = IN_THREADS if where == "threads" else EXAMPLES / "prefect_flow.py"
    with (
        ConnectionWatch(prefect["KAFKA"], runtime_dir) as watch,
        start_script(script, prefect["KAFKA"], topic, env=prefect, cwd=tmp_path) as flow,
    ):
        out, err = flow.communicate(timeout=900)
    assert (flow.returncode, out) == (0, "2001 records written\n"), err
    (sender,) = senders(runtime_dir)
    assert {pid for sample in watch.samples for pid in sample} == {sender.pid}
    assert flow.pid in attached()
    assert (len(attached()) > 1) == (where == "processes")
    assert sorted(arrived(topic, 2001).value) == sorted(b"%d" % number for number in range(2001))
