"""Writes cyproducer/protocol/kafka_messages.py from the definitions of messages in Kafka's kafka-clients jar.

The table has the APIs of cyproducer/protocol/apis.py. The program says what has changed in it, which versions of an API
are not used, and in what cyproducer/error_table.py differs from the error codes of the jar. The latter needs Java. It
ends with status 1 if a row of apis.py or error_table.py must be changed by hand.

`--check` writes nothing, and ends with status 1 also if the table would change.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generate import source

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "cyproducer/protocol/kafka_messages.py"
FOLDER = "common/message/"
SIMPLE = ("int8", "int16", "int32", "int64", "bool", "uuid", "string", "bytes", "records")
#: What a definition says of a field besides its place on the wire: prose, and what Java's classes need.
NOT_NEEDED = {"about", "entityType", "mapKey", "zeroCopy"}
NEEDED = {"name", "type", "versions", "nullableVersions", "tag", "taggedVersions", "default", "ignorable", "fields"}
NEVER = 32767

Definitions = dict[tuple[str, str], dict[str, Any]]  # {("request", "Produce"): definition}


APIS = source("cyproducer.protocol.apis").APIS


# ------------------------------------------------------------ definitions


def definitions(jar: zipfile.ZipFile) -> tuple[Definitions, str]:
    """Return the definitions of the requests and responses of APIS, and a hash of their text."""
    found: Definitions = {}
    digest = hashlib.sha256()
    for api in APIS:
        for kind in ("request", "response"):
            text = jar.read(f"{FOLDER}{api.name}{kind.title()}.json")
            digest.update(text)
            found[kind, api.name] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text.decode()))
    return found, digest.hexdigest()


def versions(text: str) -> tuple[int, int]:
    """Return the first and last version of "3-13", "3+", "3" or "none"."""
    if text == "none":
        return NEVER, NEVER
    first, dash, last = text.rstrip("+").partition("-")
    return int(first), NEVER if text.endswith("+") else int(last if dash else first)


def stable_versions(definition: dict[str, Any]) -> tuple[int, int]:
    """Return the first and the last version that brokers offer by default."""
    first, last = versions(definition["validVersions"])
    return first, last - bool(definition.get("latestVersionUnstable"))


# ------------------------------------------------------------ table


def snake_case(name: str) -> str:
    """Return the name in Python. The versions in a name ("V3AndBelowTopics") are those of the field."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"V\d+AndBelow", "", name)).lower()


def field_line(field: dict[str, Any], kind: str) -> str:
    """Return the line of a field. Raise ValueError for what the format cannot express."""
    known, null = versions(field["versions"]), versions(field.get("nullableVersions", "none"))
    if unknown := field.keys() - NEEDED - NOT_NEEDED:
        raise ValueError(f"{field['name']}: unknown: {', '.join(sorted(unknown))}")
    if null[0] != NEVER and null[1] < known[1]:
        raise ValueError(f"{field['name']}: it cannot be null in its last version")
    if field.get("taggedVersions", field["versions"]) != field["versions"]:
        raise ValueError(f"{field['name']}: it has a tag in some versions only")
    words = [snake_case(field["name"]), kind, field["versions"]]
    words += ["nullable", f"{null[0]}+"] if null[0] != NEVER else []
    words += ["tag", str(field["tag"])] if "tag" in field else []
    if "default" in field:
        default = field["default"]
        words += ["default", (default if isinstance(default, str) else json.dumps(default)) or '""']
    words += ["ignorable"] if field.get("ignorable") else []
    return " ".join(words)


def field_lines(fields: list[dict[str, Any]], shared: dict[str, Any], indent: str) -> Iterator[str]:
    """Return a line per field, with the fields of a struct after it. `shared`: structs by name."""
    names = [snake_case(field["name"]) for field in fields]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields have one name: {names}")
    for field in fields:
        array = "[]" if field["type"].startswith("[]") else ""
        element = field["type"].removeprefix("[]")
        inner = [] if element in SIMPLE else field.get("fields") or shared[element]
        yield indent + field_line(field, array + ("struct" if inner else element))
        yield from field_lines(inner, shared, indent + "  ")


def block(kind: str, name: str, definition: dict[str, Any]) -> str:
    """Return the lines of a message."""
    shared = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}
    unstable = " unstable" if definition.get("latestVersionUnstable") else ""
    head = f"{kind} {definition['apiKey']} {name} {definition['validVersions']}{unstable}"
    lines = field_lines(definition["fields"], shared, "  ")
    return "\n".join([f"{head} flexible {definition['flexibleVersions']}", *lines])


def module(found: Definitions, digest: str, version: str) -> str:
    """Return the text of kafka_messages.py."""
    keys = {definition["apiKey"]: snake_case(name).upper() for (_, name), definition in found.items()}
    members = "\n".join(f"    {keys[key]} = {key}" for key in sorted(keys))
    blocks = "\n\n".join(block(kind, name, definition) for (kind, name), definition in found.items())
    return f'''"""Describes the messages of Kafka that cyproducer uses. tools/kafka_messages.py writes this file.

Source: the definitions of Kafka {version}, which have in the order of this file the SHA-256
{digest}.

The line of a message: request or response, its API, the versions of the definition ("unstable": brokers do not offer
the last one by default), and the flexible versions. The line of a field: name, type, versions, the versions that allow
null, the tag, the default, and whether a version without the field drops its value silently. schema.py reads the lines.
"""

from enum import IntEnum


class ApiKey(IntEnum):
    """The numbers of the APIs."""

{members}


MESSAGES = """\\
{blocks}
"""
'''


# ------------------------------------------------------------ reports


def facts(text: str) -> dict[str, str]:
    """Return {"request Produce": its head, "request Produce: topic_data.name": the rest of its line} of a table."""
    found: dict[str, str] = {}
    path: list[str] = []
    message = ""
    for line in text.partition('MESSAGES = """\\\n')[2].removesuffix('"""\n').splitlines():
        if not line:
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        words = line.split()
        if depth == 0:
            message = f"{words[0]} {words[2]}"
            found[message] = " ".join(words[3:])
        else:
            path[depth - 1 :] = [words[0]]
            found[f"{message}: {'.'.join(path)}"] = " ".join(words[1:])
    return found


def changes(before: str, after: str) -> list[str]:
    """Return a line for each message or field that is new, removed or different."""
    old, new = facts(before), facts(after)
    lines = [f"removed: {name} ({old[name]})" for name in old if name not in new]
    lines += [f"new: {name} ({new[name]})" for name in new if name not in old]
    lines += [f"changed: {name}: {old[name]} -> {new[name]}" for name in new if old.get(name, new[name]) != new[name]]
    return lines


def rows_to_change(found: Definitions) -> tuple[list[str], list[str]]:
    """Return what of apis.py the definitions contradict, and which of their versions it leaves out."""
    wrong, unused = [], []
    for api in APIS:
        first, last = stable_versions(found["request", api.name])
        text = f"{api.name}: apis.py has the versions {api.first} to {api.last}, Kafka {first} to {last}"
        if api.first < first or api.last > last:
            wrong.append(text)
        elif (api.first, api.last) != (first, last):
            unused.append(text)
    return wrong, unused


def codes_to_change(jar: Path) -> tuple[list[str], list[str]]:
    """Return what of error_table.py the jar contradicts, and its codes that the jar does not have."""
    table = source("cyproducer.error_table").ERRORS
    command = ["java", "-cp", f"{jar.parent}/*", str(ROOT / "tools/ListErrors.java")]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    wrong, known = [], set()
    for line in listed.splitlines():
        found = re.match(r"(-?\d+) ([-MR]) (\w+): ", line)
        if found is None:  # a message may have several lines
            continue
        known.add(int(found[1]))
        ours = table.get(int(found[1]))
        if ours is None:
            wrong.append(f"error_table.py lacks the code: {line}")
        elif (found[3], found[2]) != (ours.name, "M" if ours.refresh_metadata else "R" if ours.retriable else "-"):
            wrong.append(f"error_table.py has another name or flag of the code: {line}")
    return wrong, [f"error_table.py has a code that the jar lacks: {table[code].name}" for code in table.keys() - known]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jar", type=Path, help="kafka-clients-VERSION.jar, in a folder with the jars that it needs")
    parser.add_argument("--check", action="store_true", help="write nothing")
    chosen = parser.parse_args()
    with zipfile.ZipFile(chosen.jar) as jar:
        found, digest = definitions(jar)
        properties = jar.read("kafka/kafka-version.properties").decode()
    before = TABLE.read_text() if TABLE.exists() else ""
    after = module(found, digest, re.findall(r"(?m)^version=(.+)$", properties)[0])
    wrong, unused = rows_to_change(found)
    wrong_codes, more_codes = codes_to_change(chosen.jar)
    print(*changes(before, after), *unused, *more_codes, *wrong, *wrong_codes, sep="\n")
    if before != after and not chosen.check:
        TABLE.write_text(after)
    if before != after:
        print(f"{'outdated' if chosen.check else 'written'}: {TABLE.relative_to(ROOT)}")
    return 1 if wrong or wrong_codes or (chosen.check and before != after) else 0


if __name__ == "__main__":
    sys.exit(main())
