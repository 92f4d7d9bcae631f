"""Writes Markdown tables of the settings, the errors and the commands, from the tables and parsers of the source.

Nothing here imports Sphinx, so that a test can compare these texts with the source.
"""

import argparse
import importlib
from collections.abc import Iterable, Sequence

from cyproducer import errors, metric_table
from cyproducer.cli import main
from cyproducer.config import hints
from cyproducer.config.kinds import INT_MAX
from cyproducer.config.table import BOTH, FRONT_END, OTHER_SPELLINGS, SECURITY_BY_NAME, SENDER, SETTINGS, Setting
from cyproducer.error_table import ERRORS
from cyproducer.observe import prometheus
from cyproducer.protocol.apis import APIS

SCOPES = {FRONT_END: "producer", SENDER: "sender", BOTH: "producer and sender"}

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. A `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# ---------------------------------------------------------------- settings


def settings() -> str:
    """Return every setting except those of TLS and SASL."""
    return _settings([setting for setting in SETTINGS if setting.name not in SECURITY_BY_NAME])


def security_settings() -> str:
    """Return every setting of TLS and SASL."""
    return _settings(SECURITY_BY_NAME.values())


def _settings(found: Iterable[Setting]) -> str:
    head = ["Setting", "Default", "Allowed values", "Scope", "Meaning"]
    rows = [
        [f"[`{s.name}`]{{#{anchor(s)}}}", _default(s), _code_free(s.kind.allowed), SCOPES[s.side], _sentence(s.meaning)]
        for s in found
    ]
    return table(head, rows)


def secret_settings() -> str:
    """Return the names of the settings that are secrets."""
    return ", ".join(f"`{setting.name}`" for setting in SETTINGS if setting.secret) + "."


def kafka_settings() -> str:
    """Return every setting of Kafka's producer, and what this producer does with it."""
    rows = []
    for setting in SETTINGS:
        if not setting.own:
            status = "supported, with a difference" if setting.note else "supported"
            page = "security_settings.md" if setting.name in SECURITY_BY_NAME else "settings.md"
            name = f"[`{setting.name}`]({page}#{anchor(setting)})"
            rows.append([f"`{setting.kafka_name}`", status, name, _code_free(setting.note)])
    for hint in hints.SETTINGS:
        if hint.client == hints.KAFKA:
            note = _sentence(hint.advice)
            if hint.accepted:
                note += " Accepted without effect: " + ", ".join(f"`{value!r}`" for value in hint.accepted) + "."
            rows.append([f"`{hint.name}`", "refused", "", _code_free(note)])
    return table(["Kafka", "Here", "Setting", "Difference or reason"], rows)


def spellings() -> str:
    """Return the other names of settings that are accepted besides Kafka's dotted form of their names."""
    rows = []
    for setting in SETTINGS:
        others = [name for name, meant in OTHER_SPELLINGS.items() if meant == setting.name]
        if others:
            dotted = [name if name.endswith("_cb") else name.replace("_", ".") for name in others]
            rows.append([f"`{setting.name}`", ", ".join(f"`{name}`" for name in dotted)])
    return table(["Setting", "Also written as"], rows)


def anchor(setting: Setting) -> str:
    """Return the name of the setting as the target of a link."""
    return "setting-" + setting.name.replace("_", "-")


def _default(setting: Setting) -> str:
    value = setting.default
    if value == ():
        return "none"
    if setting.name == "acks":
        return '`"all"`'
    if value == INT_MAX:
        return f"`{value}` (no limit)"
    shown = f"`{value!r}`"
    if isinstance(value, int) and not isinstance(value, bool) and value >= _KIB and "_ms" not in setting.name:
        for size, unit in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
            if value % size == 0:
                return f"{shown} ({value // size} {unit})"
    return shown


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _code_free(text: str) -> str:
    """Return the text for a Markdown cell. Escape what Markdown would read as markup."""
    return text.replace("*", "\\*").replace("<", "\\<")


# ---------------------------------------------------------------- other clients


def librdkafka_settings() -> str:
    """Return the settings of librdkafka and confluent-kafka that do not exist here."""
    return _setting_hints("librdkafka", hints.LIBRDKAFKA, hints.CONFLUENT)


def kafka_python_settings() -> str:
    """Return the settings of kafka-python that do not exist here."""
    return _setting_hints("kafka-python", hints.KAFKA_PYTHON)


def _setting_hints(head: str, *clients: str) -> str:
    found = [hint for hint in hints.SETTINGS if hint.client in clients]
    return _by_advice(head, [(h.name, f"`{h.meant}`" if h.meant else _sentence(h.advice)) for h in found])


def confluent_methods() -> str:
    """Return the methods of confluent-kafka's producer that do not exist here."""
    return _method_hints("confluent-kafka", hints.CONFLUENT)


def kafka_python_methods() -> str:
    """Return the methods of kafka-python's and aiokafka's producers that do not exist here."""
    return _method_hints("kafka-python, aiokafka", hints.KAFKA_PYTHON, hints.AIOKAFKA)


def _method_hints(head: str, *clients: str) -> str:
    found = [hint for hint in hints.METHODS if hint.client in clients]
    return _by_advice(head, [(hint.name, _sentence(hint.advice)) for hint in found])


def _by_advice(head: str, hints_of_names: Iterable[tuple[str, str]]) -> str:
    """Return a table with a row for each text, which is about one or more names."""
    names: dict[str, list[str]] = {}
    for name, text in hints_of_names:
        names.setdefault(text, []).append(f"`{name}`")
    return table([head, "cyproducer"], [[", ".join(same), _code_free(text)] for text, same in names.items()])


# ---------------------------------------------------------------- errors


def client_errors() -> str:
    """Return a row for each code of the client."""
    head = ["Class", "Code", "Retriable", "Meaning", "Is sending the record again safe?"]
    rows = [
        [
            f"[`{cls.__name__}`]{{#{error_anchor(code)}}}",
            f"{code} `{errors.name_for_code(code)}`",
            _yes(cls.retriable),
            _meaning(cls),
            sending_again(cls),
        ]
        for code, cls in errors.CLIENT_CODES.items()
    ]
    return table(head, rows)


def error_anchor(code: int) -> str:
    """Return the name of the client's code as the target of a link."""
    return "error-" + errors.name_for_code(code).lower().replace("_", "-")


def _meaning(cls: type[errors.KafkaError]) -> str:
    """Return the first paragraph of the class' docstring."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def sending_again(cls: type[errors.KafkaError]) -> str:
    """Return the last paragraph of the class' docstring: whether sending a record again is safe after the error."""
    before, mark, text = " ".join((cls.__doc__ or "").split()).rpartition(" Sending again: ")
    assert before and mark, f"the docstring of {cls.__name__} has no last paragraph 'Sending again: ...'"
    return text[0].upper() + text[1:]


def broker_errors(concerns: str) -> str:
    """Return a row for each of Kafka's codes that concern "producer", "transactions" or neither ("")."""
    rows = []
    for code, cls in errors.BROKER_CODES.items():
        if ERRORS[code].concerns == concerns:
            name = f"{code} `{cls.kafka_name}`"
            rows.append([f"`{cls.__name__}`", name, _yes(cls.retriable), _sentence(cls.description)])
    return table(["Class", "Code", "Retriable", "Meaning"], rows)


def base_errors() -> str:
    """Return the classes that have no code of their own."""
    coded = {*errors.BROKER_CODES.values(), *errors.CLIENT_CODES.values()}
    rows = [
        [f"`{name}`", ", ".join(f"`{base.__name__}`" for base in cls.__bases__), _meaning(cls)]
        for name, cls in error_names().items()
        if cls.__name__ == name and cls not in coded
    ]
    return table(["Class", "Bases", "Meaning"], rows)


def error_aliases() -> str:
    """Return the other names of the classes."""
    rows = [[f"`{name}`", f"`{cls.__name__}`"] for name, cls in error_names().items() if cls.__name__ != name]
    return table(["Name", "Is the class"], rows)


def error_names() -> dict[str, type[errors.KafkaError]]:
    """Return all public names of `cyproducer.errors` that are error classes."""
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.KafkaError) and not name.startswith("_")
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# ---------------------------------------------------------------- versions


def api_versions() -> str:
    """Return the table of the requests that are sent to brokers, and their versions."""
    return table(
        ("request", "first version", "last version"), [(row.name, str(row.first), str(row.last)) for row in APIS]
    )


# ---------------------------------------------------------------- metrics


def metrics() -> str:
    """Return the tables of the metrics, a section for each group."""
    parts = []
    for group in metric_table.GROUPS:
        cells = [(f"`{row.name}`", row.unit, row.meaning, _COUNTED[row.source]) for row in group.metrics]
        name = f"{group.name}{_MEMBERS[group.members]}"
        parts.append(f"## The group `{name}`\n\n{table(('name', 'unit', 'meaning', 'counts'), cells)}")
    return "\n\n".join(parts)


def process_metrics() -> str:
    """Return the table of the metrics of a process that Kafka does not have."""
    return table(("name", "unit", "meaning"), [(f"`{row.name}`", *row[1:]) for row in metric_table.PROCESS])


def sender_metrics() -> str:
    """Return the table of the metrics that `cyproducer metrics` makes from the status of a sender."""
    rows = [
        (f"`{row.name}`", ", ".join(f"`{label}`" for label in row.labels), row.meaning)
        for row in prometheus.OWN_METRICS
    ]
    return table(("metric", "labels", "meaning"), rows)


_MEMBERS = {"": "", "nodes": ".node-ID", "topics": ".NAME"}

#: What a metric counts, by its source.
_COUNTED = {
    "client": "this process",
    "own": "this process",
    "errors": "this process",
    "gauges": "see below",
    "network": "the sender",
    "nodes": "the sender",
    "topics": "this process",
    "": "nothing",
}


# ---------------------------------------------------------------- command line


def commands() -> str:
    """Return a section for each command: its usage line and its options."""
    parts = []
    for name, (_, summary) in main.COMMANDS.items():
        parts += [f"## cyproducer {name}", _sentence(summary)]
        for parser in command_parsers(name):
            usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
            rows = [[_option(action), (action.help or "").replace("<", "\\<")] for action in parser._actions]
            parts += [f"```text\n{usage}\n```", table(["Argument", "Meaning"], rows)]
    return "\n\n".join(parts)


def command_parsers(name: str) -> list[argparse.ArgumentParser]:
    """Return the parser of one command with its arguments, or those of its actions."""
    parser = argparse.ArgumentParser(prog=f"cyproducer {name}")
    importlib.import_module(main.COMMANDS[name][0]).add_arguments(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.values())
    return [parser]


def _option(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)
