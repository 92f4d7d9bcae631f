"""Reads counters of Kafka nodes over JMX, with Kafka's JmxTool: Produce requests, TLS handshakes."""

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence

from devkafka.jars import kafka_jars
from devkafka.maven import find_java

HOST = "127.0.0.1"
REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,*"
CONNECTIONS = "kafka.server:type=socket-server-metrics,listener={},*"
AUTHENTICATED = "successful-authentication-total"
"""Kafka counts a connection here when its handshake is complete. With the protocol SSL nothing follows."""
NONE_YET = "No matched attributes"


def jmx_options(port: int) -> tuple[str, ...]:
    """Return the options of a JVM that answers JMX on this port of this machine."""
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
    """Return the number of Produce requests. A node without such requests does not know the name."""
    return _count(ports, REQUESTS, "Count")


def count_handshakes(ports: Sequence[int], listener: str) -> int:
    """Return the number of TLS handshakes that were completed on a listener with the protocol SSL."""
    return _count(ports, CONNECTIONS.format(listener), AUTHENTICATED)


def _count(ports: Sequence[int], name: str, attribute: str) -> int:
    """Return the sum over the nodes. Run one JVM per node."""
    with contextlib.ExitStack() as held:
        tools = [held.enter_context(_tool(port, name, attribute)) for port in ports]
        total = 0
        for tool in tools:
            out, error = tool.communicate(timeout=60)
            if tool.returncode and NONE_YET not in out + error:
                raise RuntimeError(f"JmxTool failed: {(error + out).strip()[-500:]}")
            total += sum(int(count) for count in re.findall(rf":{attribute}=(\d+)", out))
    return total


@contextlib.contextmanager
def _tool(port: int, name: str, attribute: str) -> Iterator[subprocess.Popen[str]]:
    """Start Kafka's tool, which reads the value of one node once. It has ended at the end of the block."""
    with subprocess.Popen(
        [str(find_java()), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp",
         f"{kafka_jars()}/*", "org.apache.kafka.tools.JmxTool", "--one-time", "--report-format", "properties",
         "--jmx-url", f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi",
         "--attributes", attribute, "--object-name", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as tool:  # fmt: skip
        try:
            yield tool
        finally:
            tool.kill()
