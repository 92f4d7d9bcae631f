"""Tests the documentation: its tables are complete, and its examples use names that exist.

`tox -e lint` builds the pages. Here only texts are compared, without Sphinx.
"""

import ast
import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tidy import PATHS, ROOT

import cyproducer
from cyproducer import errors
from cyproducer.config.settings import SETTINGS
from cyproducer.observe import status

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOT_PAGES = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DECISIONS = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")
MOST_COLUMNS = 120
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[\w-]+)?\)")
INCLUDED = re.compile(r"^```\{(?:literalinclude|include|image)\} (\S+)$", re.MULTILINE)
PLACE = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
#: A file or directory of this tree that a page names, with what may follow: a test's name, or a pattern.
NAMED = re.compile(r"`((?:cyproducer|pyspark_cyproducer|tests|bench|docs|examples)/[\w./-]+)`")
ROW = re.compile(r"^\| \[?`([\w*-]+)`", re.MULTILINE)

sys.path.insert(0, str(DOCS))
tables = importlib.import_module("extension.tables")
api = importlib.import_module("extension.api")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in [*PAGES, *ROOT_PAGES]:
        for number, found in enumerate(BLOCK.finditer(page.read_text()), 1):
            if found[1] == language:
                yield f"{label(page)}, block {number}", textwrap.dedent(found[2])


def imported(tree: ast.Module) -> dict[str, object]:
    """Return what the names that a block imports from cyproducer stand for. Raise ImportError or AttributeError."""
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cyproducer":
            module = importlib.import_module(node.module or "")
            found |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "cyproducer":
                    importlib.import_module(alias.name)
                    found["cyproducer"] = cyproducer
    return found


def missing_names(tree: ast.Module) -> list[str]:
    """Return attributes and settings of cyproducer's objects that do not exist."""
    known = imported(tree)
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = known.get(node.value.id)
            if node.value.id == "producer":
                owner = cyproducer.KafkaProducer
            if owner is not None and not hasattr(owner, node.attr):
                missing.append(f"{node.value.id}.{node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "KafkaProducer":
            names = {setting.name for setting in SETTINGS}
            missing += [f"setting {word.arg}" for word in node.keywords if word.arg and word.arg not in names]
    return missing


@pytest.mark.parametrize(("where", "text"), list(blocks("python")))
def test_examples_parse_and_use_what_exists(where, text):
    assert missing_names(ast.parse(text)) == [], where


def test_the_check_of_examples_finds_errors():
    for wrong in (
        "from cyproducer import KafkaProducer\nKafkaProducer(linger=5)",
        "from cyproducer import errors\nerrors.NoSuchError",
        "import cyproducer\ncyproducer.Producer",
        "producer.produce(1)",
    ):
        assert missing_names(ast.parse(wrong)), wrong
    with pytest.raises(AttributeError):
        imported(ast.parse("from cyproducer import Producer"))
    assert not missing_names(ast.parse("from cyproducer import errors\nerrors.KafkaError\nproducer.send(1)"))


def test_every_setting_is_in_the_table_once():
    assert sorted(ROW.findall(tables.settings())) == sorted(setting.name for setting in SETTINGS)


def test_every_error_class_is_in_a_table():
    shown = "\n".join(
        [
            tables.client_errors(),
            tables.broker_errors(),
            tables.transaction_errors(),
            tables.other_broker_errors(),
            tables.base_errors(),
            tables.error_aliases(),
        ]
    )
    names = ROW.findall(shown)
    assert set(tables.error_names()) - set(names) == set()
    codes = [*errors.BROKER_CODES, *errors.CLIENT_CODES]
    assert sorted(int(code) for code in re.findall(r"\| (-?\d+) `", shown)) == sorted(codes)


def test_the_tables_say_of_each_error_of_the_client_whether_sending_again_is_safe():
    assert set(tables.SENDING_AGAIN) == set(errors.CLIENT_CODES)
    for code, cls in errors.CLIENT_CODES.items():
        assert tables.SENDING_AGAIN[code].startswith("No.") or not issubclass(cls, errors.OutcomeUnknownError), cls
    assert set(errors.BROKER_CODES) >= tables.PRODUCER_CODES


def test_every_command_has_a_section():
    from cyproducer.cli.main import COMMANDS

    text = tables.commands()
    for name in COMMANDS:
        assert f"## cyproducer {name}\n" in text
        for parser in tables.command_parsers(name):
            assert f"{parser.prog} " in text
            for action in parser._actions:
                assert all(f"`{option}" in text for option in action.option_strings), (name, action)


def test_the_reference_describes_every_public_name():
    entries = [*api.PRODUCER, *api.FUTURES, *api.VALUES, *api.OPERATIONS]
    described = {entry.name for entry in entries} | {"errors", "__version__"}
    assert {*cyproducer.__all__, *status.__all__} <= described
    text = api.reference(tuple(entries))
    owner = cyproducer.KafkaProducer
    names = [name for name in vars(owner) if hasattr(owner, name)]
    methods = [name for name in names if re.match("send|flush|close|metrics|partitions", name)]
    assert methods and all(f"{{py:method}} {name}(" in text for name in methods)


def test_a_docstring_becomes_markdown():
    text = api.describe(
        "Class.call(self, a)\n\nDoes `it`.\n\na, b      one of <these>\n          and more\nlonger    `x*`\n\nRaises E."
    )
    assert text == "Does `it`.\n\n- `a, b`: one of \\<these> and more\n- `longer`: `x*`\n\nRaises E."


def test_metrics_and_status_fields_are_described():
    metrics = cyproducer.KafkaProducer(bootstrap_servers="localhost:9092").metrics()["producer-metrics"]
    described = ROW.findall(tables.metrics().partition("producer-node-metrics")[0])
    ours = (DOCS / "reference/metrics.md").read_text().partition("## Names that Java does not have")[2]
    assert described + ROW.findall(ours.partition("\n## ")[0]) == list(metrics)
    page = (DOCS / "operations/status.md").read_text()
    fields = re.search(r"a list of\s+`(.*?)`", status.status.__doc__ or "", re.DOTALL)
    assert fields
    missing = [name for name in re.findall(r"\w+", fields[1]) if f"`{name}`" not in page]
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES], ids=label)
def test_references_of_pages_exist(page):
    text = page.read_text()
    targets = [*LINK.findall(text), *INCLUDED.findall(text)]
    assert [target for target in targets if not (page.parent / target).exists()] == []
    generated = (DOCS / "extension/generated.py").read_text()
    assert [name for name in PLACE.findall(text) if f'"{name}":' not in generated] == []
    assert text.startswith("# ") and not PATHS.search(text)


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES], ids=label)
def test_the_files_that_a_page_names_are_there(page):
    assert [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


def test_the_tests_of_the_promises_are_there():
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "design/testing.md").read_text()))
    assert len(named) > 30
    assert named - files == set()


def test_lines_are_short_except_in_tables():
    long = [
        f"{label(page)}:{number}"
        for page in [*PAGES, *ROOT_PAGES, ROOT / "bench" / "DIARY.md"]
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > MOST_COLUMNS and not line.startswith("|")
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("page", DECISIONS, ids=label)
def test_a_decision_has_its_parts_and_is_in_the_index(page):
    headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    assert [name for name in headings if name != "Rejected"] == ["Context", "Decision", "Consequence"]
    index = (DOCS / "decisions/index.md").read_text()
    assert f"]({page.name})" in index
    assert f"\n{page.stem}\n" in index  # in the table of contents of Sphinx


def test_the_architecture_names_every_folder():
    text = (DOCS / "design/architecture.md").read_text()
    folders = [path.name for path in (ROOT / "cyproducer").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in folders if f"`{name}/`" not in text] == []
    assert len(text.splitlines()) < 300
