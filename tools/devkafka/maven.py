"""Finds a Java runtime, and fetches jars from Maven's central repository into the user's cache.

The jars are fetched with Maven or with Ivy, which is part of PySpark and is used without importing PySpark.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

JAVA_MINIMUM = 17


class Artifact(NamedTuple):
    """A jar by its Maven coordinates. If `whole` is true, its dependencies are fetched too."""

    group: str
    name: str
    version: str
    whole: bool = False


class JavaMissingError(RuntimeError):
    """No Java runtime is new enough; the message says what to install."""


class DownloadError(RuntimeError):
    """Jars are not in the cache and could not be fetched; the message says what to do."""


def java_version(java: Path) -> int | None:
    """Return the major version of a ``java`` executable (8 for "1.8.0"), None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def find_java() -> Path:
    """Return the ``java`` executable of ``JAVA_HOME``, else of ``PATH``, with at least version 17.

    Raise JavaMissingError, which names the executables that were found and what to install.
    """
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    seen = []
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= JAVA_MINIMUM:
            return java
        seen.append(f"{java} is version {version}" if version else f"{java} does not run")
    raise JavaMissingError(
        f"Kafka needs a Java runtime of version {JAVA_MINIMUM} or later "
        f"({'; '.join(seen) or 'no java in JAVA_HOME or PATH'}). "
        "Debian, Ubuntu: apt-get install openjdk-17-jre-headless. "
        "Fedora: dnf install java-latest-openjdk-headless. "
        "Or set JAVA_HOME to an installed runtime."
    )


def cache_directory() -> Path:
    """Return the user's cache directory of this package, without creating it."""
    # By the XDG Base Directory specification a relative path is invalid and must be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "cyproducer"


def cached_jars(directory: str, what: str, artifacts: Sequence[Artifact]) -> Path:
    """Return the directory of that name in the cache; the first call fetches the jars into it.

    `what` names the jars in messages. If two processes call it at the same time, one fetches and the other waits.
    An interrupted fetch leaves nothing that a later call could treat as complete. Raise DownloadError or
    JavaMissingError.
    """
    target = cache_directory() / directory
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(target.name + ".lock")):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=target.name + ".", dir=target.parent) as work:
                _fetch(Path(work), target, what, artifacts).rename(target)
    return target


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive ``flock`` on a file. The kernel releases it when the process ends."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(work: Path, target: Path, what: str, artifacts: Sequence[Artifact]) -> Path:
    """Fetch all jars into a directory below ``work`` and return it."""
    jars = work / "jars"
    jars.mkdir()
    commands = []
    if ivy := _ivy_jar():
        commands.append(("Ivy of PySpark", _ivy_command(ivy, work, jars, artifacts)))
    if maven := shutil.which("mvn"):
        commands.append(("Maven", _maven_command(maven, work, jars, artifacts)))
    failures = []
    for name, command in commands:
        print(
            f"fetching {what} with {name} into {target.parent} ...",
            file=sys.stderr,
            flush=True,
        )
        run = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
        missing = [a.name for a in artifacts if not (jars / f"{a.name}-{a.version}.jar").is_file()]
        if run.returncode == 0 and not missing:
            return jars
        failures.append(
            f"{name}: exit status {run.returncode}, missing {', '.join(missing) or 'nothing'}: "
            + " | ".join(run.stdout.strip().splitlines()[-5:])
        )
    raise DownloadError(
        f"{what} is not in {target.parent} and could not be fetched: "
        + ("; ".join(failures) or "neither PySpark (with its Ivy) nor Maven's mvn is installed")
        + ". Install one of them (pip install pyspark, or apt-get install maven) and repeat with network access; or "
        f"copy the directory {target.name} from the cache of another machine."
    )


def _ivy_jar() -> Path | None:
    """Return Ivy's jar in an installed PySpark (which is not imported), None if there is none."""
    spec = find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    found = sorted(Path(places[0]).glob("jars/ivy-*.jar")) if places else []
    return found[-1] if found else None


def _ivy_command(ivy: Path, work: Path, jars: Path, artifacts: Sequence[Artifact]) -> list[str]:
    """Return the command that fetches the artifacts with Ivy, with Ivy's own cache below ``work``."""
    wanted = "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{version}" '
        + ('conf="default->default"/>' if whole else 'conf="default->master" transitive="false"/>')
        for group, artifact, version, whole in artifacts
    )
    description = work / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="cyproducer" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
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


def _maven_command(maven: str, work: Path, jars: Path, artifacts: Sequence[Artifact]) -> list[str]:
    """Return the command that fetches the artifacts with Maven."""
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{'' if whole else nothing}</dependency>"
        for group, artifact, version, whole in artifacts
    )
    project = work / "pom.xml"
    project.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>cyproducer</groupId><artifactId>jars</artifactId><version>1</version>"
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
