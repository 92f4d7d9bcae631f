"""Defines the two versions that run beside each other."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.process import run_script
from versions.former import former_package

import cyproducer

#: A version is installed with its headers. Modules may have other names in it.
FACTS = """
    import json, re
    from pathlib import Path
    import cyproducer
    from cyproducer.config.settings import Settings
    header = Path(cyproducer.__file__).parent / "shm" / "layout.h"
    layout = re.search(r"#define CYP_LAYOUT_VERSION (\\d+)", header.read_text())
    settings = Settings.parse(bootstrap_servers="b").sender_settings()
    print(json.dumps([cyproducer.__file__, int(layout[1]), json.dumps(settings)]))
"""


@dataclass(frozen=True)
class Version:
    """A version of the package, the directory that holds it, its memory layout, and the settings of its senders.

    Processes of two versions find the same sender if layout and settings are equal.
    """

    name: str
    root: Path
    layout: int
    sender_settings: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process of this version has in its environment."""
        return {"PYTHONPATH": os.fspath(self.root)}


def _version(name: str, root: Path) -> Version:
    file, layout, sender_settings = json.loads(run_script(FACTS, env={"PYTHONPATH": os.fspath(root)}, cwd="/").stdout)
    assert Path(file).is_relative_to(root), f"{file} is not in {root}"
    return Version(name, root, layout, sender_settings)


@pytest.fixture(autouse=True)
def outside_of_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks for packages in the working directory first."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def both() -> dict[str, Version]:
    """Return the former version and the present one, by the names "former" and "present"."""
    return {
        "former": _version("former", former_package()),
        "present": _version("present", Path(cyproducer.__file__).resolve().parents[1]),
    }


@pytest.fixture(params=[("former", "present"), ("present", "former")], ids="-".join)
def pair(request: pytest.FixtureRequest, both: dict[str, Version]) -> tuple[Version, Version]:
    """One version and the other one."""
    one, other = request.param
    return both[one], both[other]
