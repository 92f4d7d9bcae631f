"""Tests that the manifests in `deploy/kubernetes` name options that exist, and that their containers fit together."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cyproducer.cli import health, sender

MANIFESTS = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
COMMANDS = {"sender": sender, "health": health}


def pods() -> Iterator[Any]:
    """Yield the name and the specification of each pod."""
    for path in sorted(MANIFESTS.glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text())):
            yield pytest.param(document["spec"]["template"]["spec"], id=f"{path.name} {number}")


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def parsed(command: list[str]) -> argparse.Namespace:
    """Return what a command line of `cyproducer` means."""
    name, *arguments = command
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[name].add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("pod", list(pods()))
def test_command_lines_are_understood(pod: dict[str, Any]) -> None:
    for container in containers(pod):
        lines = [container["args"]] if "args" in container else []
        for kind in ("startupProbe", "readinessProbe"):
            if kind in container:
                program, *line = container[kind]["exec"]["command"]
                assert program == "cyproducer"
                lines.append(line)
                assert container[kind]["timeoutSeconds"] > parsed(line).timeout
        sockets = {parsed(line).socket for line in lines}
        assert len(sockets) <= 1, container["name"]
        mounted = {mount["mountPath"] for mount in container.get("volumeMounts", ())}
        assert all(socket is None or str(Path(socket).parent) in mounted for socket in sockets)
        # A broker that cannot be reached is no reason to end a sender with its records.
        assert "livenessProbe" not in container


def test_the_application_of_the_node_is_admitted() -> None:
    pods_of = {param.id: param.values[0] for param in pods()}
    of_sender, of_application = pods_of["daemonset.yaml 0"], pods_of["daemonset.yaml 1"]
    (running,) = of_sender["containers"]
    assert parsed(running["args"]).allow_gid == [of_application["securityContext"]["runAsGroup"]]
    paths = {pod["volumes"][0]["hostPath"]["path"] for pod in (of_sender, of_application)}
    assert paths == {str(Path(parsed(running["args"]).socket).parent)}
