"""Tests the real Kafka nodes that other tests kill, pause and read."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from devkafka import maven as jars_module
from devkafka.node import (
    JavaMissingError,
    KafkaCluster,
    KafkaStartError,
    find_java,
    free_ports,
    kafka_jars,
    mock_cluster,
)
from support.connections import broker_connections, ports_of
from support.consumer import read_topic
from support.process import is_running, run_script, start_script, wait_until


def produce(bootstrap_servers, topic, values, partition=0, **settings):
    """Send values with confluent-kafka and wait for all of them."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=b"k%d" % number, partition=partition, headers=[("h", b"x")], timestamp=1000)
    assert producer.flush(30) == 0


def test_foreign_consumer_reads_everything(kafka, new_topic):
    topic = new_topic(2)
    produce(kafka.bootstrap_servers, topic, [b"a", None, b""], partition=1)
    read = read_topic(kafka.bootstrap_servers, topic, 3)
    assert read.partition == [1, 1, 1]
    assert read.offset == [0, 1, 2]
    assert read.key == [b"k0", b"k1", b"k2"]
    assert read.value == [b"a", None, b""]
    assert read.headers == [[("h", b"x")]] * 3
    assert read.timestamp == [1000] * 3
    assert read.values_of(0) == []


def test_records_with_old_timestamps_are_kept(kafka, topic):
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "-1"


def test_reader_says_how_many_are_missing(kafka, topic):
    produce(kafka.bootstrap_servers, topic, [b"a"])
    with pytest.raises(AssertionError, match="1 of 2 records"):
        read_topic(kafka.bootstrap_servers, topic, 2, timeout=3)


def test_reader_reads_past_the_count(kafka, topic):
    produce(kafka.bootstrap_servers, topic, [b"a", b"a", b"a"])
    assert len(read_topic(kafka.bootstrap_servers, topic, 1)) == 3


def test_dump_log_has_batches_and_records(kafka, topic):
    together = {"enable.idempotence": True, "linger.ms": 500}
    produce(kafka.bootstrap_servers, topic, [b"line\none", b"| two", None], **together)
    (batch,) = kafka.dump_log(topic, 0)
    assert (batch.base_offset, batch.last_offset, batch.count, batch.base_sequence) == (0, 2, 3, 0)
    assert batch.producer_id >= 0
    assert (batch.epoch, batch.crc_valid, batch.magic, batch.compression) == (0, True, 2, "none")
    assert batch.records == []
    (batch,) = kafka.dump_log(topic, 0, records=True)
    assert [record.value for record in batch.records] == ["line\none", "| two", None]
    assert [record.key for record in batch.records] == ["k0", "k1", "k2"]
    assert batch.records[0].header_keys == ("h",)
    assert [record.sequence for record in batch.records] == [0, 1, 2]
    with pytest.raises(ValueError, match="no log of partition 7"):
        kafka.dump_log(topic, 7)


def test_unknown_topic_is_not_created(kafka):
    with pytest.raises(AssertionError, match="nowhere"):
        read_topic(kafka.bootstrap_servers, "nowhere", 1)


def test_topic_configs_reach_the_broker(kafka, new_topic):
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    produce(kafka.bootstrap_servers, topic, [b"a"])
    assert kafka.dump_log(topic)[0].timestamp_type == "LogAppendTime"


def test_topic_without_a_client_library(kafka, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    kafka.create_topic("by-the-tool", 2, configs={"retention.ms": "1000000"})
    assert sorted(kafka.metadata("by-the-tool").leaders) == [0, 1]


def answers(address):
    """Return whether a node answers an ApiVersions request within a second."""
    host, _, port = address.rpartition(":")
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection((host, int(port)), 1) as connection:
            connection.settimeout(1)
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(8)) == 8
    except OSError:
        return False


def test_pause_resume_kill_restart(kafka, topic):
    address = kafka.bootstrap_servers
    assert answers(address)
    kafka.pause()
    assert not answers(address)
    kafka.resume()
    assert answers(address)
    produce(address, topic, [b"kept"])
    pid = kafka.pid()
    kafka.kill()
    assert not is_running(pid)
    assert not answers(address)
    with pytest.raises(ProcessLookupError):
        kafka.pid()
    kafka.restart()
    assert kafka.bootstrap_servers == address
    assert answers(address)
    assert read_topic(address, topic, 1).value == [b"kept"]


def test_node_is_left_dead_for_the_next_test(kafka):
    """First of a pair of tests: it leaves the node dead, and the fixture restarts it."""
    kafka.kill()


def test_node_was_restored(kafka):
    assert answers(kafka.bootstrap_servers)


def test_connections_are_counted_from_outside(kafka):
    (port,) = ports_of(kafka.bootstrap_servers)
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        assert broker_connections(port).get(os.getpid()) == 2
    wait_until(lambda: os.getpid() not in broker_connections(port), what="the end of the connections")


@pytest.mark.long
def test_three_nodes_replace_a_killed_leader(kafka3, new_topic):
    topic = new_topic(3, 3, cluster=kafka3)
    before = kafka3.metadata(topic)
    assert set(before.leaders.values()) == {1, 2, 3}
    victim = before.leaders[0]
    other = victim % 3 + 1
    kafka3.kill(victim)
    wait_until(lambda: kafka3.metadata(topic, other).leaders[0] != victim, 20, "a leader after the kill")
    produce(kafka3.bootstrap_servers, topic, [b"a", b"b"], acks="all")
    assert read_topic(kafka3.bootstrap_servers, topic, 2).value == [b"a", b"b"]
    assert [batch.count for batch in kafka3.dump_log(topic)] == [2]


def test_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(KafkaStartError, match=f"(?s)127.0.0.1:{port} ended.*already in use"):
            KafkaCluster(1, tmp_path, ports=[port]).start()


def test_node_ends_with_a_killed_parent(tmp_path):
    source = """
        import sys, time
        from devkafka.node import KafkaCluster
        cluster = KafkaCluster(1, sys.argv[1])
        cluster.start()
        print(cluster.pid(), flush=True)
        time.sleep(600)
    """
    with start_script(source, tmp_path) as process:
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
        process.wait()
        wait_until(lambda: not is_running(pid), what="the end of the node")


def test_temporary_directory_goes_with_the_cluster():
    with KafkaCluster() as cluster:
        directory = cluster.directory
        assert directory.is_dir()
    assert not directory.exists()
    assert cluster.pids() == []


def test_mock_cluster_answers_and_ends(monkeypatch):
    with mock_cluster(2) as bootstrap_servers:
        ports = ports_of(bootstrap_servers)
        assert len(ports) == 2
        produce(bootstrap_servers, "any", [b"a"])
    assert not answers(f"127.0.0.1:{ports[0]}")
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(RuntimeError, match="pip install confluent-kafka"), mock_cluster():
        pass


def test_old_or_missing_java_is_explained(tmp_path, monkeypatch):
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() != old, "PATH has a Java that is new enough"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"is version 8.*apt-get install openjdk-17-jre-headless"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(JavaMissingError, match=r"no java in JAVA_HOME or PATH.*dnf install"):
        find_java()


def test_offline_without_cache_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars_module, "_ivy_jar", lambda: None)
    monkeypatch.setattr(jars_module.shutil, "which", lambda _: None)
    with pytest.raises(jars_module.DownloadError, match="pip install pyspark, or apt-get install maven"):
        kafka_jars()
    assert [p.name for p in (tmp_path / "cyproducer").iterdir()] == ["kafka-4.3.1.lock"]


def test_failed_fetch_leaves_nothing_and_two_fetch_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tool = tmp_path / "mvn"
    tool.write_text("#!/bin/sh\necho no route to the repository\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(jars_module, "_ivy_jar", lambda: None)
    monkeypatch.setattr(jars_module.shutil, "which", lambda _: str(tool))
    with pytest.raises(jars_module.DownloadError, match=r"Maven: exit status 1.*no route to the repository"):
        kafka_jars()
    assert [p.name for p in (tmp_path / "cyproducer").iterdir()] == ["kafka-4.3.1.lock"]
    tool.write_text(FAKE_MAVEN)
    script = """
        import devkafka.maven as jars
        from devkafka.jars import kafka_jars
        jars._ivy_jar = lambda: None
        print(kafka_jars())
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "CALLS": str(tmp_path / "calls")}
    with (
        start_script(script, env=environment) as one,
        start_script(script, env=environment) as two,
    ):
        printed = {process.communicate(timeout=60)[0].strip() for process in (one, two)}
    assert printed == {str(tmp_path / "cyproducer" / "kafka-4.3.1")}
    assert (tmp_path / "calls").read_text() == "called\n"


def test_jars_of_an_older_version_lie_beside_and_without_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars_module, "_ivy_jar", lambda: None)
    asked = []

    def fetch(command, **_):
        asked.append(Path(command[4]).read_text())
        for name in ("kafka_2.13-3.3.2.jar", "slf4j-simple-1.7.36.jar"):
            (Path(command[-1].partition("=")[2]) / name).touch()
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(jars_module.shutil, "which", lambda _: "mvn")
    monkeypatch.setattr(jars_module.subprocess, "run", fetch)
    assert kafka_jars("3.3.2") == tmp_path / "cyproducer" / "kafka-3.3.2"
    assert "<version>3.3.2</version>" in asked[0]
    assert "kafka-tools" not in asked[0]


FAKE_MAVEN = """#!/bin/sh
echo called >> "$CALLS"
for word in "$@"; do case "$word" in -DoutputDirectory=*) out="${word#*=}";; esac; done
sleep 0.3
touch "$out/kafka_2.13-4.3.1.jar" "$out/kafka-tools-4.3.1.jar" "$out/slf4j-simple-1.7.36.jar"
"""


def test_free_ports_are_outside_of_the_ephemeral_range():
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(not low <= port <= high for port in ports)


def test_run_script_fails_with_stacks_at_its_timeout():
    with pytest.raises(AssertionError, match=r"(?s)did not end within 1 s.*Current thread.*in stuck"):
        run_script(
            """
            import time
            def stuck():
                time.sleep(600)
            stuck()
        """,
            timeout=1,
        )
    with pytest.raises(AssertionError, match="status 3"):
        run_script("import sys; sys.exit(3)")
    done = run_script("import sys; print(sys.argv[1], input())", "word", input="line\n")
    assert isinstance(done, subprocess.CompletedProcess)
    assert done.stdout == "word line\n"


def test_dump_has_the_markers_of_transactions(kafka, new_topic):
    topic = new_topic(1)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.commit_transaction(60)
    batch, marker = kafka.dump_log(topic, records=True)
    assert (batch.transactional, batch.control, [record.value for record in batch.records]) == (True, False, ["a"])
    assert (marker.transactional, marker.control, marker.records) == (True, True, [])


@pytest.mark.long
def test_features_are_at_the_given_levels():
    with KafkaCluster(features={"transaction.version": 1}) as cluster:
        tool = cluster.tool(
            "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", cluster.bootstrap_servers, "describe"
        )
        (line,) = (line for line in tool.stdout.splitlines() if "transaction.version" in line)
        assert "FinalizedVersionLevel: 1" in line
