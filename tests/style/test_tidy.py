"""Tests the house rules: length, docstrings, no leftovers, no paths of a developer's machine."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREES = ("cyproducer", "pyspark_cyproducer", "tests", "bench", "examples", "docs")
KINDS = (".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".c")
TEXTS = ("README.md", "DESIGN.md", "CHANGELOG.md", "tox.ini", "pyproject.toml", "setup.py", "demo", "test", ".ci/run")
MOST_FUNCTION_LINES = 70
MOST_PARAMETERS = 10  # with self; more belong into a struct or an object
CYTHON_FUNCTION = re.compile(
    r"^( *)(?:cdef|cpdef|def|async def)\b(?! class| enum| struct| extern)[^\n=#(]*?\b(\w+)"
    r"\(((?:[^()#]|\([^()]*\))*)\)[^\n]*:$",
    re.MULTILINE,
)
CAST_WITH_SPACE = re.compile(r"(?<![\w)\]])<(?:const )?[A-Za-z_][\w.]*(?: \*+)?> [\w&(\[*-]")
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PATHS = re.compile(r"(?<![\w.~}/-])/(?:home|Users|root|work)/[\w.-]+")


def generated(path: Path) -> bool:
    """Return whether the file is Cython's output beside a ``.pyx``."""
    return path.suffix == ".c" and path.with_suffix(".pyx").exists()


def sources() -> list[Path]:
    trees = [p for tree in TREES for p in sorted(ROOT.glob(f"{tree}*"))]
    files = [f for tree in trees for f in ([tree] if tree.is_file() else sorted(tree.rglob("*")))]
    return [f for f in files if f.suffix in KINDS and "build" not in f.parts and not generated(f)]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def everything() -> list[Path]:
    """Return sources and texts, without this file, which has to contain the patterns that it looks for."""
    found = sources() + [ROOT / name for name in TEXTS if (ROOT / name).is_file()]
    return [path for path in found if path != Path(__file__).resolve()]


def begins_with_docstring(path: Path) -> bool:
    """Return whether a file begins with its description: a docstring, in C a comment."""
    text = path.read_text()
    if path.suffix in (".h", ".c"):
        return text.lstrip().startswith(("/*", "//"))
    if path.suffix in (".py", ".pyi"):
        return bool(ast.get_docstring(tree_of(path)))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return bool(lines) and lines[0].lstrip("rRuU").startswith(('"""', "'''"))


def long_functions(tree: ast.Module) -> list[str]:
    """Return functions of a Python file that are longer than the rule allows."""
    return [
        f"{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MOST_FUNCTION_LINES
    ]


def cython_functions(text: str) -> list[tuple[str, int, int]]:
    """Return (name, lines without the docstring, parameters) of each function of a Cython file."""
    text = re.sub(r'^( *)"""(?:.|\n)*?"""$', r"\1DOCSTRING", text, flags=re.MULTILINE)
    lines = text.splitlines()
    found = []
    for match in CYTHON_FUNCTION.finditer(text):
        indent, name, parameters = match.groups()
        first = text.count("\n", 0, match.start())
        body = last = text.count("\n", 0, match.end()) + 1
        for number in range(body, len(lines)):
            if lines[number].strip():
                if not lines[number].startswith(indent + " "):
                    break
                last = number + 1
        count = len([part for part in re.sub(r"\([^()]*\)|\[[^\]]*\]", "", parameters).split(",") if part.strip()])
        found.append((name, last - first, count))
    return found


def too_large(path: Path) -> list[str]:
    """Return the functions of a Cython file that are too long or have too many parameters."""
    return [
        f"{label(path)}: {name} has {lines} lines and {parameters} parameters"
        for name, lines, parameters in cython_functions(path.read_text())
        if lines > MOST_FUNCTION_LINES or parameters > MOST_PARAMETERS
    ]


def test_functions_are_short():
    found = [f"{label(p)}: {f}" for p in sources() if p.suffix == ".py" for f in long_functions(tree_of(p))]
    assert not found, "\n".join(found)


def test_cython_functions_are_short_and_have_few_parameters():
    found = [row for path in sources() if path.suffix in (".pyx", ".pxd") for row in too_large(path)]
    assert not found, "\n".join(found)


def test_cython_functions_are_found():
    """So that the rule above can fail."""
    text = """
cdef class A:
    cdef int f(self, int a[2],
        (int, int) b,
    ) except -1:
        pass

        return 0
"""
    assert cython_functions(text) == [("f", 6, 3)]
    path = ROOT / "cyproducer" / "producer" / "kafka_producer.pyx"
    assert ("send", 8) in [(name, parameters) for name, _, parameters in cython_functions(path.read_text())]


def test_casts_have_no_space():
    found = [
        f"{label(path)}: {line.strip()}"
        for path in sources()
        if path.suffix in (".pyx", ".pxd")
        for line in path.read_text().splitlines()
        if CAST_WITH_SPACE.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_file_says_what_it_is():
    silent = [label(p) for p in sources() if not begins_with_docstring(p)]
    assert not silent, "no docstring (comment, in C) at the beginning of:\n" + "\n".join(silent)


@pytest.mark.parametrize("pattern", [LEFTOVERS, PATHS], ids=["leftovers", "paths"])
def test_nothing_is_left_in_the_text(pattern):
    found = [
        f"{label(path)}:{number}: {line.strip()[:100]}"
        for path in everything()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_names_of_test_files_differ():
    """Test modules are imported by their base name, so that a spawned child can import them too."""
    seen: dict[str, Path] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        assert path.name not in seen, f"{label(path)} and {label(seen[path.name])} have the same name"
        seen[path.name] = path


def test_the_patterns_find_leftovers():
    assert LEFTOVERS.search("# TODO: later")
    assert not LEFTOVERS.search("methodology of hackers")
    for top in ("home", "Users", "root", "work"):
        for text in (f"/{top}/x", f"see /{top}/x", f"'/{top}/x'"):
            assert PATHS.search(text), text
        assert not PATHS.search(f"https://example.org/{top}/page and ~/{top}/x and {{base}}/{top}/x"), top
    assert long_functions(ast.parse("def f():\n" + "    pass\n" * 80))
    assert not long_functions(ast.parse("def f():\n    pass\n"))
