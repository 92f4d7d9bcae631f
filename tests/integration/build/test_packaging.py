"""Tests the distributions: what they hold, what they say, and that a package installed from them sends a record."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.process import senders, wait_until

ROOT = Path(__file__).resolve().parents[3]
#: Files that builds and runs leave in a tree.
GENERATED = shutil.ignore_patterns(
    ".git", ".tox", ".venv", "venv", "build", "dist", "*.egg-info", "__pycache__", "*.so", ".*_cache", ".hypothesis"
)
BUILD_SETTINGS = {
    "CYPRODUCER_DEBUG": "",
    "CYPRODUCER_SANITIZE": "",
    "CYPRODUCER_BUILD_JOBS": "2",
    "CFLAGS": "-O0",  # takes half a minute instead of some minutes
}
PROGRAM = """
import sys
import cyproducer
from cyproducer import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], sender_idle_timeout_ms=0)
print(producer.send(sys.argv[2], b"value").result(60).offset)
producer.close()
print(cyproducer.__version__)
print(cyproducer.__file__)
"""
HOOKS = """
from importlib.metadata import entry_points
from pathlib import Path
(hooks,) = entry_points(group="pyinstaller40", name="hook-dirs")
(directory,) = map(Path, hooks.load()())
files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.*"))
print(*(name for name in files if "__" not in name))
"""


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=1500
    )


def assert_holds_the_product_only(wheel: Path) -> None:
    """Check the files of a wheel, and the bill of materials in it."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (described,) = (name for name in names if name.endswith(".dist-info/sboms/cyproducer.cdx.json"))
        bill = json.loads(file.read(described))
        recorded = file.read(described.partition("/")[0] + "/RECORD").decode()
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"cyproducer", "pyspark_cyproducer", described.partition("/")[0]}
    assert [name for name in names if name.endswith((".pyx", ".c", ".pyc"))] == []
    assert [name for name in names if re.search(r"(^|/)(tests?|bench|devkafka)(/|_)", name)] == []
    assert len([name for name in names if name.endswith(".so")]) == 4
    wanted = {
        "cyproducer/py.typed",
        *(f"{described.partition('/')[0]}/{name}" for name in ("licenses/LICENSE", "RECORD")),
    }
    assert wanted <= set(names)
    assert described in recorded
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "cyproducer")
    assert [part["name"] for part in bill["components"]] == ["Cython", "CPython"]
    assert all(part["version"] for part in bill["components"])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the source tree as in a fresh clone."""
    return Path(shutil.copytree(ROOT, tmp_path / "tree", ignore=GENERATED))


def install_compression(site_packages: Path) -> None:
    """Provide cramjam, the only dependency, from this interpreter's installation: the test needs no network."""
    distribution = importlib.metadata.distribution("cramjam")
    for name in distribution.files or []:
        if name.parts[0].startswith("cramjam"):
            (site_packages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name.locate(), site_packages / name)


@pytest.mark.timeout(1800)
def test_source_distribution_installed_elsewhere_sends_a_record(
    tree: Path, tmp_path: Path, kafka: KafkaCluster, topic: str, runtime_dir: Path
) -> None:
    made = run(sys.executable, "-c", "from setuptools.build_meta import build_sdist; build_sdist('..')", cwd=tree)
    assert made.returncode == 0, made.stderr
    (archive,) = tmp_path.glob("cyproducer-*.tar.gz")
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    wanted = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    missing = {name for name in wanted - held if ".egg-info" not in name and not name.startswith(".git")}
    assert not missing

    compiler = {"CC": "ccache gcc", "CCACHE_NOHASHDIR": "1"} if shutil.which("ccache") else {}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = run(
        *pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, archive,
        cwd=tmp_path, **compiler, **BUILD_SETTINGS,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.name.endswith("-any.whl")
    assert_holds_the_product_only(wheel)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=empty).returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    (site_packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    install_compression(site_packages)
    installed = run(*pip, "--python", python, "install", "--no-index", wheel, cwd=empty)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    sent = run(python, "-c", PROGRAM, kafka.bootstrap_servers, topic, cwd=empty, PYTHONPATH="")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    offset, version, where = sent.stdout.splitlines()
    assert offset == "0"
    assert where == str(site_packages / "cyproducer" / "__init__.py")
    shown = run(python.with_name("cyproducer"), "--version", cwd=empty, PYTHONPATH="")
    assert shown.stdout == f"cyproducer {version}\n"
    assert f"cyproducer-{version}" in archive.name
    hooks = run(python, "-c", HOOKS, cwd=empty, PYTHONPATH="")
    assert hooks.stdout.split() == ["hook-cyproducer.py", "rthooks.dat", "rthooks/pyi_rth_cyproducer.py"], hooks.stderr
    wait_until(lambda: not senders(runtime_dir), 30, "the end of the sender")


def test_the_description_has_absolute_links_to_what_exists(tree: Path, tmp_path: Path) -> None:
    code = "from setuptools.build_meta import prepare_metadata_for_build_wheel as make; make('..')"
    made = run(sys.executable, "-c", code, cwd=tree)
    assert made.returncode == 0, made.stderr
    (path,) = tmp_path.glob("*.dist-info")
    metadata = importlib.metadata.PathDistribution(path).metadata
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL") or [])
    links = re.findall(r"\]\((.*?)\)", metadata["Description"])
    assert len(links) > 40
    assert all(link.startswith("https://") for link in links)
    ours = [link.removeprefix(urls["Repository"]) for link in links if link.startswith(urls["Repository"])]
    for where in ours:
        tag, _, name = where.removeprefix("/blob/").removeprefix("/raw/").partition("/")
        assert tag == f"v{metadata['Version']}"
        assert (tree / name.partition("#")[0]).exists(), name


def test_a_free_threaded_python_builds_nothing(tree: Path, tmp_path: Path) -> None:
    """The test gives this Python the ABI flags of such a build."""
    code = "import sys, sysconfig; sysconfig.get_config_vars(); sys.abiflags += 't'; "
    code += "from setuptools.build_meta import build_wheel; build_wheel('..')"
    built = run(sys.executable, "-c", code, cwd=tree, **BUILD_SETTINGS)
    assert built.returncode != 0
    assert "cyproducer needs the GIL" in built.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_build_without_modules_fails_and_says_why(tree: Path, tmp_path: Path) -> None:
    for path in tree.rglob("*.pyx"):
        path.unlink()
    built = run(
        sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('..')",
        cwd=tree, **BUILD_SETTINGS,
    )  # fmt: skip
    assert built.returncode != 0
    assert f"nothing to build: there is no .pyx file in {tree / 'cyproducer'}" in built.stderr
    assert not list(tmp_path.glob("*.whl"))
