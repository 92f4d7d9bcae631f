"""Tests which package may import which: every import and cimport is compared with the rule.

The rule is the table in tests/tiers/packages.py: ``shm`` imports nothing of ours, ``protocol`` only Kafka's error
codes, there is no edge between ``producer`` and ``sender``, and the outer packages use the public API.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers.packages import PACKAGES, package_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cyproducer"

CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+(?P<origin>[\w.]+)\s+c?import\s+(?P<names>\([^)]*\)|[^\n#]*)"
    r"|c?import\s+(?P<modules>[\w., ]+))",
    re.MULTILINE,
)


def python_imports(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, names) of each import of Python source, wherever it stands; relative dots are kept."""
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
    """Yield (module, names) of each import and cimport of Cython source, which ``ast`` cannot read."""
    for found in CYTHON_IMPORT.finditer(text):
        if found["modules"]:
            for module in found["modules"].split(","):
                if module.strip():
                    yield module.split()[0], []
        else:
            names = found["names"].strip("() \n")
            yield found["origin"], [n.split()[0] for n in re.split(r"[,\n]", names) if n.strip()]


def targets(module: str, text: str, cython: bool, package: bool = False) -> Iterator[str]:
    """Yield what one module's source imports of ours: modules, and names of modules."""
    for origin, names in (cython_imports if cython else python_imports)(text):
        level = len(origin) - len(origin.lstrip("."))
        if level:
            # In a package's __init__, one dot is the package itself.
            parts = module.split(".")
            base = parts[: len(parts) - level + package]
            origin = ".".join([*base, *filter(None, [origin.lstrip(".")])])
        if origin.split(".")[0] in ("cyproducer", "pyspark_cyproducer"):
            # ``from cyproducer import errors`` names a module, of ``KafkaProducer`` the package.
            yield from [f"{origin}.{name}" for name in names] or [origin]


def edges(module: str, text: str, cython: bool, package: bool = False) -> Iterator[tuple[str, str]]:
    """Return (package, imported package) pairs of one module's source, edges inside a package left out."""
    here = package_of(module)
    for target in targets(module, text, cython, package):
        there = package_of(target)
        if there != here:
            yield here, there


def forbidden(module: str, text: str, cython: bool = False, package: bool = False) -> list[str]:
    """Return the edges of one module that the rule does not allow, as text."""
    return sorted(
        {
            f"{module}: {here} -> {there}"
            for here, there in edges(module, text, cython, package)
            if there not in PACKAGES[here].imports
        }
    )


def sources() -> list[Path]:
    """Return all source files of the package and of Spark's discovery module."""
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
    assert not bad, "imports that the packages' rules do not allow:\n" + "\n".join(bad)


INCLUDE = re.compile(r'^include "([^"]+)"', re.MULTILINE)


def modules_of_files() -> dict[Path, set[str]]:
    """Return the modules of which each file is a part: its own one, or those that include it."""
    files = sources()
    including: dict[Path, set[str]] = {path: set() for path in files}
    for path in files:
        for name in INCLUDE.findall(path.read_text()):
            including[(path.parent / name).resolve()].add(module_name(path))
    return {path: including[path] or {module_name(path)} for path in files}


def imported_modules() -> dict[str, set[str]]:
    """Return the modules that each module imports: anywhere in it, also lazily and for the type checker only."""
    files = modules_of_files()
    found: dict[str, set[str]] = {module: set() for modules in files.values() for module in modules}
    for path, modules in files.items():
        cython = path.suffix not in (".py", ".pyi")
        for module in modules:
            for target in targets(module, path.read_text(), cython, path.stem == "__init__"):
                while target and target not in found:
                    target = target.rpartition(".")[0]
                found[module].add(target)
    return {module: imported - {"", module} for module, imported in found.items()}


def circles(imported: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for module in imported:
        reached[module], left = set(), [module]
        while left:
            for target in imported[left.pop()] - reached[module]:
                reached[module].add(target)
                left.append(target)
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imported
        if module in reached[module]
    }


def test_no_modules_import_each_other():
    found = circles(imported_modules())
    assert not found, "\n".join(", ".join(sorted(circle)) for circle in found)


def test_no_packages_may_import_each_other():
    found = circles({name: set(package.imports) - {name} for name, package in PACKAGES.items()})
    assert not found, "\n".join(", ".join(sorted(circle)) for circle in found)


def test_included_files_are_parts_of_their_module():
    modules = modules_of_files()
    assert modules[PACKAGE / "producer/core/future.pyx"] == {"cyproducer.producer.core.native"}
    assert modules[PACKAGE / "producer/core/native.pyi"] == {"cyproducer.producer.core.native"}
    assert len(modules[PACKAGE / "record/format.pyx"]) > 1
    imported = imported_modules()
    assert "cyproducer.producer.core.attachment" in imported["cyproducer.producer.core.native"]


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}


def test_every_package_has_a_rule():
    packages = {".".join(path.parent.relative_to(PACKAGE).parts) for path in PACKAGE.rglob("__init__.py")} - {""}
    modules = {p.stem for p in PACKAGE.iterdir() if p.suffix in (".py", ".pyi", ".pyx", ".pxd")} - {"__init__"}
    assert packages | modules <= set(PACKAGES)


@pytest.mark.parametrize(
    ("module", "text", "cython", "package"),
    [
        ("cyproducer.producer.a", "from cyproducer.sender.engine.native import run", False, False),
        ("cyproducer.producer.a", "def f():\n    import cyproducer.sender", False, False),
        ("cyproducer.producer.a", "from ..sender import loop", False, False),
        ("cyproducer.producer", "from ..sender import loop", False, True),
        (
            "cyproducer.producer.a",
            "import importlib\nimportlib.import_module('cyproducer.sender')",
            False,
            False,
        ),
        ("cyproducer.sender.a", "from cyproducer.producer.core.native cimport put", True, False),
        ("cyproducer.sender.a", "cimport cyproducer.producer.core.native as x", True, False),
        ("cyproducer.sender.a", "from ..producer.append cimport (\n    put,\n    take)", True, False),
        ("cyproducer.record.a", "from cyproducer.sender.engine.native cimport run", True, False),
        ("cyproducer.producer.core.a", "def f():\n    from cyproducer.producer import channel", False, False),
        ("cyproducer.shm.ring", "from cyproducer.record.varint cimport size", True, False),
        ("cyproducer.shm.ring", "from cyproducer import errors", False, False),
        ("cyproducer.protocol.codec", "from cyproducer import KafkaProducer", False, False),
        ("cyproducer.protocol.codec", "from cyproducer import errors", False, False),
        ("cyproducer.error_table", "from cyproducer import errors", False, False),
        ("cyproducer.security.sasl", "from cyproducer.config import kinds", False, False),
        ("cyproducer.security.sasl", "from cyproducer.sender.cluster import broker", False, False),
        ("cyproducer.spark.writer", "from cyproducer.producer.channel import x", False, False),
        ("cyproducer.cli.main", "from cyproducer.sender.control.server import main", False, False),
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
        ("cyproducer.sender.engine.a", "from cyproducer.record cimport merge", True, False),
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


OWN_IMPORT = re.compile(r"^\s+from (?:cyproducer|pyspark_cyproducer)[\w.]* c?import ")


def unexplained_imports(text: str) -> list[str]:
    """Return imports of our own modules inside functions without a comment on the line or above the first of them."""
    lines = text.splitlines()
    found = []
    for at, line in enumerate(lines):
        if not OWN_IMPORT.match(line) or "#" in line:
            continue
        above = at - 1
        while OWN_IMPORT.match(lines[above]):
            above -= 1
        if not lines[above].lstrip().startswith(("#", "if TYPE_CHECKING")):
            found.append(line.strip())
    return found


def test_an_import_inside_a_function_says_why():
    """Such imports hide cycles. A deliberate lazy load has a comment with its reason."""
    found = [
        f"{module_name(path)}: {line}"
        for path in sources()
        if path.name != "spawn.py"  # it holds a program as text
        for line in unexplained_imports(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("def f():\n    from cyproducer.host import trust\n", 1),
        ("def f():\n    from cyproducer.host import trust  # rare\n", 0),
        ("def f():\n    # rare\n    from cyproducer.host import trust\n    from cyproducer.host import poll\n", 0),
        ("from cyproducer.host import trust\n", 0),
    ],
)
def test_an_unexplained_import_is_found(text, number):
    assert len(unexplained_imports(text)) == number
