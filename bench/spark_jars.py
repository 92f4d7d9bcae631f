"""The jars of Spark's own Kafka sink, which PySpark does not bring along; kept in the user's cache."""

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from cyproducer.cli.kafka_jars import cache_directory, find_java

# The newest of the first two that resolve; they run on Spark 4.1 to 4.3.
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


def spark_kafka_jars() -> list[Path]:
    """The four jars, fetched on the first call through the Ivy inside PySpark, else through Maven.

    Raises RuntimeError that says what failed.
    """
    target = cache_directory() / f"spark-sql-kafka-{JARS[0][2]}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            fetched = _fetch(Path(work))
            if not target.is_dir():  # another process may have been faster
                fetched.rename(target)
    return [target / f"{artifact}-{version}.jar" for _, artifact, version in JARS]


def _fetch(work: Path) -> Path:
    jars = work / "jars"
    jars.mkdir()
    if ivy := _ivy():
        command = _ivy_command(ivy, work, jars)
    elif maven := shutil.which("mvn"):
        command = _maven_command(maven, work, jars)
    else:
        raise RuntimeError("the Spark sinks need PySpark (pip install pyspark), whose Ivy fetches the rest")
    print("fetching the jars of Spark's Kafka sink ...", file=sys.stderr, flush=True)
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    missing = [name for _, name, version in JARS if not (jars / f"{name}-{version}.jar").is_file()]
    if run.returncode or missing:
        tail = " | ".join((run.stdout + run.stderr).strip().splitlines()[-5:])
        raise RuntimeError(
            f"{', '.join(missing)} could not be fetched (use --no-spark to do without): {tail}"
        )
    return jars


def _ivy() -> Path | None:
    spec = find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    found = sorted(Path(places[0]).glob("jars/ivy-*.jar")) if places else []
    return found[-1] if found else None


def _ivy_command(ivy: Path, work: Path, jars: Path) -> list[str]:
    wanted = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->master" transitive="false"/>'
        for group, name, version in JARS
    )
    description = work / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="cyproducer" module="bench"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies>'
        "</ivy-module>"
    )
    return [
        str(find_java()),
        "-jar",
        str(ivy),
        "-cache",
        str(work / "ivy"),
        "-ivy",
        str(description),
        "-retrieve",
        f"{jars}/[artifact]-[revision].[ext]",
        "-types",
        "jar",
        "bundle",
    ]


def _maven_command(maven: str, work: Path, jars: Path) -> list[str]:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, name, version in JARS
    )
    project = work / "pom.xml"
    project.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>cyproducer</groupId><artifactId>bench</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    return [
        maven,
        "-q",
        "-B",
        "-f",
        str(project),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={jars}",
    ]
