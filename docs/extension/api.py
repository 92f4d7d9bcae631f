"""Writes the reference of the Python interface: signatures from the stubs, descriptions from the docstrings.

A Cython module shows no types, and a stub has no docstrings. So this module joins both.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_ROW = re.compile(r"(\w+(?:, \w+)*)\s{2,}(\S.*)")


class Entry(NamedTuple):
    """A public class or function."""

    name: str
    module: str


PRODUCER = (Entry("KafkaProducer", "cyproducer.producer.producer"),)
FUTURES = (
    Entry("Future", "cyproducer.producer.core.native"),
    Entry("BulkFuture", "cyproducer.producer.producer"),
    Entry("wait", "cyproducer.producer.channel.waits"),
    Entry("as_completed", "cyproducer.producer.channel.waits"),
)
VALUES = (
    Entry("RecordMetadata", "cyproducer.producer.core.native"),
    Entry("ArrayMetadata", "cyproducer.types"),
    Entry("TopicPartition", "cyproducer.types"),
    Entry("ProducerRecord", "cyproducer.types"),
)
OPERATIONS = (
    Entry("status", "cyproducer.observe.status"),
    Entry("ended_with_failures", "cyproducer.observe.status"),
    Entry("health", "cyproducer.observe.status"),
    Entry("stop", "cyproducer.observe.status"),
    Entry("senders", "cyproducer.observe.status"),
    Entry("list_all", "cyproducer.observe.transactions"),
    Entry("describe", "cyproducer.observe.transactions"),
    Entry("abort", "cyproducer.observe.transactions"),
    Entry("stable_offset", "cyproducer.group_offsets"),
    Entry("run_sender", "cyproducer.foreground"),
)


def reference(entries: tuple[Entry, ...]) -> str:
    """Return the entries as directives of Sphinx' Python domain."""
    return "\n\n".join(_entry(entry) for entry in entries)


def _entry(entry: Entry) -> str:
    module = importlib.import_module(entry.module)
    described = getattr(module, entry.name)
    node = _definition(entry)
    if isinstance(node, ast.ClassDef):
        members = "\n\n".join(_member(described, member) for member in node.body if _is_public(member))
        arguments = "(**settings)" if entry.name == "KafkaProducer" else ""
        body = f"{describe(described.__doc__)}\n\n{members}"
        return f"::::{{py:class}} {entry.name}{arguments}\n\n{body}\n\n::::"
    return f"::::{{py:function}} {_signature(node, vars(module))}\n\n{describe(described.__doc__)}\n\n::::"


def _definition(entry: Entry) -> ast.ClassDef | ast.FunctionDef:
    """Return the definition in the stub, or in the module if that is Python."""
    path = Path(importlib.import_module("cyproducer").__path__[0], *entry.module.split(".")[1:])
    stub = path.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else path.with_suffix(".py")).read_text())
    aliases = {
        node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == entry.name:
            written: ast.ClassDef | ast.FunctionDef = _Expand(aliases).visit(node)
            return written
    raise LookupError(f"{entry.module} has no {entry.name}")


class _Expand(ast.NodeTransformer):
    """Replaces the names of a stub's private type aliases by the types."""

    def __init__(self, aliases: Mapping[str, ast.expr]) -> None:
        self._aliases = aliases

    def visit_Name(self, node: ast.Name) -> ast.expr:  # the name that NodeTransformer looks for
        return self._aliases[node.id] if node.id.startswith("_") and node.id in self._aliases else node


def _is_public(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):  # a field of a named tuple
        return isinstance(node.target, ast.Name)
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


def _member(owner: type, node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return f":::{{py:attribute}} {ast.unparse(node.target)}\n:type: {ast.unparse(node.annotation)}\n:::"
    assert isinstance(node, ast.FunctionDef)
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
        kind = f":::{{py:property}} {node.name}\n:type: {ast.unparse(node.returns) if node.returns else 'Any'}\n"
    else:
        kind = f":::{{py:method}} {_signature(node)}\n"
    return f"{kind}\n{describe(getattr(owner, node.name).__doc__)}\n\n:::"


def _signature(node: ast.FunctionDef, values: Mapping[str, object] = MappingProxyType({})) -> str:
    """Return the signature as text. `values` maps the names of default values to the values."""
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    parameters = arguments.args
    parameters.args = [argument for argument in parameters.args if argument.arg != "self"]
    parameters.defaults = [
        ast.Constant(values[default.id]) if isinstance(default, ast.Name) and default.id in values else default
        for default in parameters.defaults
    ]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(parameters)}){returned}"


def describe(docstring: str | None) -> str:
    """Return a docstring as Markdown, without the signature that Cython puts in front. Rows become a list."""
    text = inspect.cleandoc(docstring or "")
    first, _, rest = text.partition("\n")
    if re.match(r"\w+(\.\w+)?\(", first):
        text = inspect.cleandoc(rest)
    return "\n\n".join(_paragraph(block) for block in text.split("\n\n"))


def _paragraph(block: str) -> str:
    rows: list[list[str]] = []
    for line in block.splitlines():
        found = _ROW.fullmatch(line)
        if found:
            rows.append([found[1], found[2]])
        elif rows and line.startswith(" "):
            rows[-1][1] += " " + line.strip()
        else:
            return _escaped(" ".join(block.split()))
    return "\n".join(f"- `{name}`: {_escaped(text)}" for name, text in rows)


def _escaped(text: str) -> str:
    """Return the text. Outside of code, escape what Markdown would read as markup or HTML."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
