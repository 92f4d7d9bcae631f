"""Asks Kafka nodes over JMX how many Produce requests they have had, with Kafka's own JmxTool."""

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence

from cyproducer.cli.kafka_jars import kafka_jars
from cyproducer.cli.maven_jars import find_java

HOST = "127.0.0.1"
REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,*"
NONE_YET = "No matched attributes"


def jmx_options(port: int) -> tuple[str, ...]:
    """Options of a JVM that is to answer on that port of this machine."""
    prefix = "-Dcom.sun.management.jmxremote"
    return (
        f"{prefix}.port={port}",
        f"{prefix}.rmi.port={port}",
        f"{prefix}.host={HOST}",
        f"{prefix}.authenticate=false",
        f"{prefix}.ssl=false",
        f"-Djava.rmi.server.hostname={HOST}",
    )


def count_requests(ports: Sequence[int]) -> int:
    """The sum over the nodes; a node that has had none does not know the name. A JVM for each, side by side."""
    with contextlib.ExitStack() as held:
        tools = [held.enter_context(_tool(port)) for port in ports]
        total = 0
        for tool in tools:
            out, error = tool.communicate(timeout=60)
            if tool.returncode and NONE_YET not in out + error:
                raise RuntimeError(f"JmxTool failed: {(error + out).strip()[-500:]}")
            total += sum(int(count) for count in re.findall(r":Count=(\d+)", out))
    return total


@contextlib.contextmanager
def _tool(port: int) -> Iterator[subprocess.Popen[str]]:
    """Kafka's tool, which asks one node once; it has ended when the block has."""
    with subprocess.Popen(
        [str(find_java()), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp",
         f"{kafka_jars()}/*", "org.apache.kafka.tools.JmxTool", "--one-time", "--report-format", "properties",
         "--jmx-url", f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi",
         "--attributes", "Count", "--object-name", REQUESTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as tool:  # fmt: skip
        try:
            yield tool
        finally:
            tool.kill()
