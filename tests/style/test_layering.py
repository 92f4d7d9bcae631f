"""Which room may import which: every import and cimport of the package is read and compared with the rule.

The rule is in DESIGN.md: ``shm`` and ``protocol`` know nothing of ours, there is no edge between ``producer``
and ``sender``, and the outer rooms use the public API.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cyproducer"

LEAVES = {"errors", "config", "kinds", "types"}
LOW = {"shm", "record", "protocol", "cluster", "transaction", "security"}
# room (or leaf module) -> what of ours it may import besides itself; "api" is the package ``cyproducer``
ALLOWED: dict[str, set[str]] = {
    "shm": set(),
    "protocol": set(),
    "record": {"shm"},
    "producer": {"shm", "record"} | LEAVES,
    "cluster": {"protocol"},
    "transaction": {"protocol"},
    "security": {"protocol"},
    "sender": LOW | {"observe"} | LEAVES,
    # status.py asks a sender on its control socket, which is shm's.
    "observe": {"shm"} | LEAVES,
    "spark": {"api"} | LEAVES,
    "cli": {"api", "observe", "foreground"} | LEAVES,
    # A public module: a sender run in the caller's own process.
    "foreground": {"sender", "shm"} | LEAVES,
    "unsupported": LEAVES,
    "errors": LEAVES,
    "config": LEAVES,
    "kinds": LEAVES,
    "types": LEAVES,
    # The package itself gathers the public names; it is no implementation.
    "api": {"producer", "unsupported"} | LEAVES,
    "__main__": {"cli"},
    "pyspark_cyproducer": {"spark"},
}

CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+(?P<origin>[\w.]+)\s+c?import\s+(?P<names>\([^)]*\)|[^\n#]*)"
    r"|c?import\s+(?P<modules>[\w., ]+))",
    re.MULTILINE,
)


def python_imports(text: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of each import of Python source, wherever it stands; relative dots are kept."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(("import_module", "__import__"))
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value), []


def cython_imports(text: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of each import and cimport of Cython source, which ``ast`` cannot read."""
    for found in CYTHON_IMPORT.finditer(text):
        if found["modules"]:
            for module in found["modules"].split(","):
                if module.strip():
                    yield module.split()[0], []
        else:
            names = found["names"].strip("() \n")
            yield found["origin"], [n.split()[0] for n in re.split(r"[,\n]", names) if n.strip()]


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a dotted module name that begins with ``cyproducer``."""
    if parts[0] == "pyspark_cyproducer":
        return parts[0]
    return parts[1] if len(parts) > 1 and parts[1] in ALLOWED else "api"


def edges(module: str, text: str, cython: bool, package: bool = False) -> Iterator[tuple[str, str]]:
    """(room, imported room) of one module's source, edges inside a room left out."""
    here = room_of(tuple(module.split(".")))
    for origin, names in (cython_imports if cython else python_imports)(text):
        level = len(origin) - len(origin.lstrip("."))
        if level:
            # In a package's __init__, one dot is the package itself.
            parts = module.split(".")
            base = parts[: len(parts) - level + package]
            origin = ".".join([*base, *filter(None, [origin.lstrip(".")])])
        if origin.split(".")[0] not in ("cyproducer", "pyspark_cyproducer"):
            continue
        # ``from cyproducer import errors`` names a module, of ``KafkaProducer`` the package.
        targets = [f"{origin}.{name}" for name in names] if origin == "cyproducer" and names else [origin]
        for target in targets:
            there = room_of(tuple(target.split(".")))
            if there != here:
                yield here, there


def forbidden(module: str, text: str, cython: bool = False, package: bool = False) -> list[str]:
    """The edges of one module that the rule does not allow, as text."""
    return sorted(
        {
            f"{module}: {here} -> {there}"
            for here, there in edges(module, text, cython, package)
            if there not in ALLOWED[here]
        }
    )


def sources() -> list[Path]:
    """All source files of the package and of Spark's discovery module."""
    trees = [PACKAGE, *ROOT.glob("pyspark_cyproducer*")]
    found = []
    for tree in trees:
        files = [tree] if tree.is_file() else sorted(tree.rglob("*"))
        found += [path for path in files if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi")]
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_edge_is_allowed():
    bad = []
    for path in sources():
        cython = path.suffix in (".pyx", ".pxd", ".pxi")
        bad += forbidden(module_name(path), path.read_text(), cython, path.stem == "__init__")
    assert not bad, "imports that the rooms do not allow:\n" + "\n".join(bad)


def test_every_room_has_a_rule():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py*"))}
    rooms -= {"__pycache__"}
    modules = {p.stem for p in PACKAGE.iterdir() if p.suffix in (".py", ".pyi", ".pyx", ".pxd")} - {
        "__init__"
    }
    assert rooms | modules <= set(ALLOWED)


@pytest.mark.parametrize(
    ("module", "text", "cython", "package"),
    [
        ("cyproducer.producer.a", "from cyproducer.sender.loop import run", False, False),
        ("cyproducer.producer.a", "def f():\n    import cyproducer.sender", False, False),
        ("cyproducer.producer.a", "from ..sender import loop", False, False),
        ("cyproducer.producer", "from ..sender import loop", False, True),
        (
            "cyproducer.producer.a",
            "import importlib\nimportlib.import_module('cyproducer.sender')",
            False,
            False,
        ),
        ("cyproducer.sender.a", "from cyproducer.producer.append cimport put", True, False),
        ("cyproducer.sender.a", "cimport cyproducer.producer.append as x", True, False),
        ("cyproducer.sender.a", "from ..producer.append cimport (\n    put,\n    take)", True, False),
        ("cyproducer.shm.ring", "from cyproducer.record.varint cimport size", True, False),
        ("cyproducer.shm.ring", "from cyproducer import errors", False, False),
        ("cyproducer.protocol.codec", "from cyproducer import KafkaProducer", False, False),
        ("cyproducer.spark.writer", "from cyproducer.producer.bulk import x", False, False),
        ("cyproducer.cli.main", "from cyproducer.sender.control import main", False, False),
        ("cyproducer.errors", "from cyproducer.producer import x", False, False),
        ("cyproducer", "from cyproducer.sender import x", False, True),
    ],
)
def test_a_forbidden_edge_is_found(module, text, cython, package):
    assert forbidden(module, text, cython, package)


@pytest.mark.parametrize(
    ("module", "text", "cython", "package"),
    [
        (
            "cyproducer.producer.a",
            "from cyproducer.shm.ring cimport push\nfrom libc.string cimport memcpy",
            True,
            False,
        ),
        ("cyproducer.producer.a", "from . import b\nfrom .. import errors\nimport os", False, False),
        ("cyproducer.producer", "from . import b\nfrom .a import c", False, True),
        ("cyproducer.sender.a", "from cyproducer.record cimport merge", True, False),
        (
            "cyproducer.cli.main",
            "from cyproducer import KafkaProducer\nfrom cyproducer.errors import KafkaError",
            False,
            False,
        ),
        ("cyproducer", "from cyproducer.producer.client import KafkaProducer", False, True),
        ("pyspark_cyproducer", "from cyproducer.spark import Source", False, True),
    ],
)
def test_an_allowed_edge_is_not(module, text, cython, package):
    assert forbidden(module, text, cython, package) == []
