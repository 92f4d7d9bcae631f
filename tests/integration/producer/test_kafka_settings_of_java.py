"""Compares the table of settings with `ProducerConfig` of the real Kafka: names, defaults and ranges."""

import html
import re
import subprocess
from typing import NamedTuple

import pytest
from devkafka.jars import kafka_jars
from devkafka.maven import DownloadError, JavaMissingError, find_java

from cyproducer.config import hints
from cyproducer.config.kinds import INT_MAX, LONG_MAX, Wrong
from cyproducer.config.table import SETTINGS

OURS = {setting.kafka_name: setting for setting in SETTINGS if not setting.own}
REFUSED = {hint.name for hint in hints.SETTINGS if hint.client == hints.KAFKA}
#: docs/decisions.md#other-defaults has the reasons.
OTHER_DEFAULTS = {
    "batch.size",
    "client.id",
    "sasl.kerberos.service.name",
    "ssl.cipher.suites",
    "ssl.keystore.type",
    "ssl.truststore.type",
}
#: Settings that are objects of Python here.
OBJECTS = {"bootstrap.servers", "key.serializer", "value.serializer", "partitioner.class", "interceptor.classes"}
#: Settings that accept less than Kafka; the note of each begins with its range.
NARROWER = {
    "buffer.memory",
    "max.request.size",
    "metrics.num.samples",
    "metrics.sample.window.ms",
    "request.timeout.ms",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    "transaction.timeout.ms",
}
RANGE = re.compile(r"From \d+ .*?to \d+|At least (\d+|one)\b")


class Defined(NamedTuple):
    """What Kafka says of a setting."""

    type: str
    default: str
    valid: str


@pytest.fixture(scope="module")
def java() -> dict[str, Defined]:
    """Return the settings of `ProducerConfig`. Its main() prints them as HTML."""
    try:
        jars, program = kafka_jars(), find_java()
    except (JavaMissingError, DownloadError) as error:
        pytest.fail(str(error), pytrace=False)
    command = [program, "-cp", f"{jars}/*", "org.apache.kafka.clients.producer.ProducerConfig"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = {}
    for part in text.split("<h4>")[1:]:
        name = re.search(r'<a id="([\w.]+)">', part)
        cells = [re.search(rf"<th>{head}:</th><td>(.*?)</td>", part) for head in ("Type", "Default", "Valid Values")]
        assert name and all(cells), part[:200]
        found[name[1]] = Defined(*(html.unescape(cell[1]) for cell in cells if cell))
    assert len(found) > 100
    return found


def test_every_setting_of_kafka_is_supported_or_refused(java: dict[str, Defined]) -> None:
    assert {*OURS, *REFUSED} == set(java)


def test_defaults_are_kafkas(java: dict[str, Defined]) -> None:
    different = set()
    for name, row in OURS.items():
        if name in OBJECTS:
            continue
        default = re.sub(r" \(.*\)$", "", java[name].default)
        value = None if default == "null" else default
        if default == '""' or row.kind.parse(value, True) != row.default:
            different.add(name)
    assert different == OTHER_DEFAULTS


def test_ranges_are_kafkas(java: dict[str, Defined]) -> None:
    narrower = set()
    for name, defined in java.items():
        if name in REFUSED or defined.type not in ("int", "long"):
            continue
        ends = [int(number) for number in re.findall(r"-?\d+", defined.valid)]
        most = LONG_MAX if defined.type == "long" else INT_MAX
        if len(ends) < 2:
            ends = [*(ends or [-1]), most]
        for value in ends:
            try:
                OURS[name].kind.parse(str(value), True)
            except Wrong:
                narrower.add(name)
    assert narrower == NARROWER
    assert [name for name in narrower if not RANGE.match(OURS[name].note)] == []
    assert [name for name in OTHER_DEFAULTS if not OURS[name].note] == []


def test_the_range_of_the_windows_of_metrics_is_the_one_that_its_row_names() -> None:
    """Kafka has a long, from 0 on."""
    parse = OURS["metrics.sample.window.ms"].kind.parse
    first, last = map(int, re.findall(r"\d+", OURS["metrics.sample.window.ms"].note)[:2])
    assert (first, last) == (1, INT_MAX)
    assert [parse(str(value), True) for value in (first, last)] == [first, last]
    for value in (first - 1, last + 1):
        with pytest.raises(Wrong):
            parse(str(value), True)
