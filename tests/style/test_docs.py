"""Tests the documentation: its tables are complete, and its examples use names that exist.

`tox -e lint` builds the pages. Here only texts are compared, without Sphinx.
"""

import ast
import importlib
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tidy import PATHS, ROOT, everything

import cyproducer
from cyproducer import errors
from cyproducer.config.table import SETTINGS
from cyproducer.observe import status

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOT_PAGES = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
#: Pages for engineers: their paths may begin below cyproducer/.
FOR_ENGINEERS = [ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md", DOCS / "decisions.md"]
#: Pages for users. The settings are one table.
FOR_USERS = [
    page
    for page in [*PAGES, ROOT / "README.md", ROOT / "SECURITY.md"]
    if page not in {*FOR_ENGINEERS, DOCS / "design.md", DOCS / "contributing.md", DOCS / "changes.md"}
]
MOST_WORDS_OF_DESIGN = 10_000
LINES_OF_A_SCREEN, COLUMNS_OF_A_SCREEN = 40, 100
MOST_COLUMNS = 120
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[\w-]+)?\)")
FENCE = re.compile(r"^```\{(?:literalinclude|include)\} (\S+)\n(?:.*\n)*?```$", re.MULTILINE)
INCLUDED = re.compile(r"^```\{(?:literalinclude|include|image)\} (\S+)$", re.MULTILINE)
#: A file or directory of this tree that a page names, with what may follow: a test's name, or a pattern.
NAMED = re.compile(r"`((?:cyproducer|pyspark_cyproducer|tests|bench|docs|examples|tools|deploy)/[\w./-]+)`")
FOLDERS = (
    "shm|record|protocol|config|security|host|producer|sender|observe|doctor|spark|cli|pyinstaller|tools|tests|docs"
    "|cyproducer"
)
PATH = rf"(?:(?:{FOLDERS})/[\w./-]*|[\w/-]+\.(?:py|pyi|pyx|pxd|h|c|md|toml))"
#: A file or folder of this tree, and what it has by a page: `path`: `name`, `Class.name()`.
HOLDS = re.compile(rf"`({PATH})`:\s+(`[\w.()]+`(?:,\s+`[\w.()]+`)*)")
DECISION = re.compile(r"decisions\.md#([\w-]+)")
ROW = re.compile(r"^\| \[?`([\w*-]+)`", re.MULTILINE)

sys.path.insert(0, str(DOCS))
tables = importlib.import_module("extension.tables")
api = importlib.import_module("extension.api")
generated = importlib.import_module("extension.generated")


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


def test_the_citation_names_the_version():
    assert f"\nversion: {cyproducer.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_error_class_is_in_a_table():
    shown = "\n".join(
        [
            tables.client_errors(),
            *(tables.broker_errors(concerns) for concerns in ("producer", "transactions", "")),
            tables.base_errors(),
            tables.error_aliases(),
        ]
    )
    names = ROW.findall(shown)
    assert set(tables.error_names()) - set(names) == set()
    codes = [*errors.BROKER_CODES, *errors.CLIENT_CODES]
    assert sorted(int(code) for code in re.findall(r"\| (-?\d+) `", shown)) == sorted(codes)


def test_the_tables_say_of_each_error_of_the_client_whether_sending_again_is_safe():
    for cls in errors.CLIENT_CODES.values():
        assert tables.sending_again(cls).startswith("No.") or not issubclass(cls, errors.OutcomeUnknownError), cls


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
    assert described + ROW.findall(tables.process_metrics()) == list(metrics)
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
    assert generated.filled(text)
    assert text.startswith("# ") and not PATHS.search(text)


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES], ids=label)
def test_the_files_that_a_page_names_are_there(page):
    assert [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


def found_at(path: str) -> Path | None:
    """Return the file or folder that a page for engineers names; None if it is not there."""
    places = (ROOT / path, ROOT / "cyproducer" / path)
    return next((place for place in places if place.exists()), None)


def false_claims(text: str) -> list[str]:
    """Return the paths of a page that are not there, and the names that a file or folder lacks although it says so."""
    named = [path for path in re.findall(rf"`({PATH})`", text) if "/" in path]
    commands = " ".join(span for span in re.findall(r"`([^`]*)`", BLOCK.sub("", text)) if " " in span)
    named += re.findall(r"(?<=[ /])tests/[\w./]+", commands)
    named += [module.replace(".", "/") for module in re.findall(r"python -m ((?:tests|bench)[\w.]*)", commands)]
    wrong = [path for path in named if found_at(path) is None]
    tiers = (ROOT / "tox.ini").read_text()
    environments = re.findall(r"(?:test|tox) -e (\w+)", commands)
    wrong += [f"-e {name}" for name in environments if f"[testenv:{name}]" not in tiers]
    for path, names in HOLDS.findall(text):
        place = found_at(path)
        for name in re.findall(r"`([\w.]+)(?:\(\))?`", names):
            if place is None:
                known = False
            elif place.is_dir():
                known = (place / name).exists()
            else:
                known = re.search(rf"\b{name.rpartition('.')[2]}\b", place.read_text()) is not None
            if not known:
                wrong.append(f"{path}: {name}")
    return wrong


@pytest.mark.parametrize("page", FOR_ENGINEERS, ids=label)
def test_a_file_holds_what_a_page_says(page):
    text = page.read_text()
    assert false_claims(text) == []
    if page.name == "DESIGN.md":
        assert len(HOLDS.findall(text)) > 100


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`sender/engine/no_such.pyx`", ["sender/engine/no_such.pyx"]),
        ("`sender/engine/wire.pyx`: `assign`, `no_such`", ["sender/engine/wire.pyx: no_such"]),
        ("`shm/batch.h`: `slot_commit`", ["shm/batch.h: slot_commit"]),
        ("`codes.py`: `NO_SUCH`", ["codes.py: NO_SUCH"]),
        ("`python -m pytest -q tests/unit/no_such.py tests/unit`", ["tests/unit/no_such.py"]),
        ("`DESIGN.md` after `a` and `./test -e no_such`", ["-e no_such"]),
        ("`python -m tests.no_such --seconds 1`; `./test -e no_such`", ["tests/no_such", "-e no_such"]),
        ("`producer/appender.pyx`:\n`Appender.attempt()`; `shm/batch.h`: `cyp_slot_commit`", []),
    ],
)
def test_a_false_claim_is_found(text, wrong):
    assert false_claims(text) == wrong


def test_the_design_is_short_and_names_every_folder():
    text = (ROOT / "DESIGN.md").read_text()
    assert len(text.split()) <= MOST_WORDS_OF_DESIGN
    folders = [path.name for path in (ROOT / "cyproducer").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in folders if f"`{name}/`" not in text] == []


def test_each_decision_is_a_paragraph_and_each_link_to_one_leads_there():
    text = (DOCS / "decisions.md").read_text()
    found = dict(re.findall(r"^### (.*)\n\n((?:.+\n)+)(?=\n|\Z)", text, re.MULTILINE))
    assert len(found) == text.count("\n### ") > 50
    assert [title for title, paragraph in found.items() if len(paragraph.split()) > 120] == []
    anchors = {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in found}
    linked = {
        (label(path), anchor)
        for path in {*PAGES, *ROOT_PAGES, *everything(), ROOT / "bench" / "DIARY.md"}
        for anchor in DECISION.findall(path.read_text())
    }
    assert {link for link in linked if link[1] not in anchors} == set()


def lines_on_the_screen(page: Path) -> int:
    """Count the lines of a page with its generated tables and included files, each wrapped at COLUMNS_OF_A_SCREEN."""
    text = FENCE.sub(lambda found: (page.parent / found[1]).read_text(), generated.filled(page.read_text()))
    return sum(max(1, math.ceil(len(line) / COLUMNS_OF_A_SCREEN)) for line in text.splitlines())


@pytest.mark.parametrize("page", FOR_USERS, ids=label)
def test_a_page_for_users_has_at_most_ten_screens(page):
    assert lines_on_the_screen(page) <= 10 * LINES_OF_A_SCREEN


def test_lines_are_short_except_in_tables():
    long = [
        f"{label(page)}:{number}"
        for page in [*PAGES, *ROOT_PAGES, ROOT / "bench" / "DIARY.md"]
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > MOST_COLUMNS and not line.startswith("|")
    ]
    assert not long, "\n".join(long)
