"""Writes declarations of what is stated elsewhere: run it after a change of what they are made from.

- the numbers of the sensors in cyproducer/shm/sensors.h, from cyproducer/metric_table.py
- the layout of shared memory and the functions on it in cyproducer/shm/protocol.pxd, from the C headers
- Kafka's error codes in cyproducer/codes.py from cyproducer/error_table.py
- the classes of errors for type checkers in cyproducer/errors.pyi, and all error codes for native code in
  cyproducer/protocol/error_codes.pxd, from cyproducer/errors.py
- versions and tags of messages in cyproducer/protocol/message_versions.pxd, from kafka_messages.py and apis.py there
- the reasons of events in cyproducer/sender/engine/reasons.pyx, from cyproducer/sender/engine/events.py
- the states of a transactional producer in cyproducer/shm/transaction.h, from cyproducer/transaction_states.py
- the attributes in cyproducer/config/settings.py, the keyword arguments in cyproducer/producer/producer.pyi and the
  native settings in cyproducer/sender/engine/settings.pyx, from cyproducer/config/table.py

`--check` writes nothing, and ends with status 1 if a file would change.
"""

import argparse
import keyword
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: The headers of which all constants, structs and functions are declared: a declaration that no module uses costs
#: nothing. The last header of a row includes the others of that row.
HEADERS = (
    ("sizes.h", "sensors.h", "transaction.h", "layout.h"),
    ("atomics.h",),
    ("linux.h",),
    ("geometry.h",),
    ("batch.h",),
    ("rings.h",),
    ("snapshot.h",),
    ("metrics.h",),
)
#: What Cython calls a struct or a function. All other functions have their C name without ``cyp_``, and all other
#: structs have their C name.
NAMES = {
    "cyp_load_acquire_u64": "load_acquire",
    "cyp_load_relaxed_u64": "load_relaxed",
    "cyp_store_release_u64": "store_release",
    "cyp_store_relaxed_u64": "store_relaxed",
    "cyp_load_acquire_u32": "load_acquire32",
    "cyp_load_relaxed_u32": "load_relaxed32",
    "cyp_store_release_u32": "store_release32",
    "cyp_store_relaxed_u32": "store_relaxed32",
    "cyp_load_relaxed_u8": "load_relaxed8",
    "cyp_store_relaxed_u8": "store_relaxed8",
    "cyp_cas_u64": "cas",
    # What region.pyx calls keeps the prefix: `fcntl` and `madvise` are names of Python and of the C library.
    "cyp_memfd_create": "cyp_memfd_create",
    "cyp_fcntl": "cyp_fcntl",
    "cyp_madvise": "cyp_madvise",
    "cyp_is_hugetlb": "cyp_is_hugetlb",
    "cyp_front_end_geometry": "FrontEndGeometry",
    "cyp_snapshot_geometry": "SnapshotGeometry",
    "cyp_state_geometry": "StateGeometry",
    "cyp_front_end_sizes": "front_end_geometry",
    "cyp_snapshot_sizes": "snapshot_geometry",
    "cyp_state_sizes": "state_geometry",
}
BEGIN = "# The rest of this file is generated from the headers by tools/generate.py.\n"
WIDTH = 120
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MACRO = re.compile(r"^#define (CYP_[A-Z0-9_]+) +\S", re.MULTILINE)
BLOCK = re.compile(
    r"typedef struct \{(?P<fields>.*?)^\} (?P<name>\w+);|^enum \w+ \{(?P<values>.*?)\};", re.DOTALL | re.MULTILINE
)
FIELD = re.compile(r"(?P<type>\w+) (?P<name>\w+)(?P<sizes>(?:\[[^\]]*\])*);")
FUNCTION = re.compile(
    r"^static inline (?P<result>[\w ]+[ *])(?P<name>cyp_\w+)\((?P<arguments>[\w *,\n]*)\) \{", re.MULTILINE
)
#: What the compiler says of a macro, and how Cython declares it: the members of an enum can be sizes of arrays.
KINDS = {
    "int": "enum",
    "unsigned": "const uint32_t",
    "unsigned long": "const uint64_t",
    "unsigned long long": "const uint64_t",
}


def source(name: str) -> ModuleType:
    """Return a Python module of this tree. Its packages are not imported: what they import need not be built."""
    *packages, _ = name.split(".")
    for count in range(1, len(packages) + 1):
        package = ".".join(packages[:count])
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [str(ROOT.joinpath(*packages[:count]))]
    return import_module(name)


def kinds_of(macros: list[str]) -> dict[str, str]:
    """Ask the C compiler for the types of macros, and return {macro: a key of KINDS}; others are left out."""
    words = ", ".join(f'{kind}: "{kind}"' for kind in KINDS)
    lines = "\n".join(f'puts("{name} " _Generic(({name}), {words}, default: ""));' for name in macros)
    included = "\n".join(f'#include "cyproducer/shm/{header}"' for *_, header in HEADERS)
    text = f"#include <stdio.h>\n{included}\nint main(void) {{\n{lines}\nreturn 0;\n}}\n"
    text = re.sub(r'puts\("(\w+) " (_Generic.*)\);', r'printf("\1 %s\\n", \2);', text)
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    program = ROOT / "build" / "kinds"
    program.parent.mkdir(exist_ok=True)
    command = [*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-w", f"-I{ROOT}", "-x", "c", "-", "-o", str(program)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the headers cannot be compiled:\n{done.stderr}")
    try:
        rows = subprocess.check_output([str(program)], text=True).splitlines()
    finally:
        program.unlink()
    return {name: kind for name, _, kind in (row.partition(" ") for row in rows) if kind in KINDS}


def cython_name(name: str) -> str:
    """Return what Cython calls a function, with the C name if that is another one."""
    short = NAMES.get(name, name.removeprefix("cyp_"))
    return short if short == name else f'{short} "{name}"'


def cython_type(text: str) -> str:
    """Return a C type, or an argument with its type, as Cython writes it. Keywords of Python get an underscore."""
    words = re.sub(r"\bbool\b", "bint", " ".join(text.split()))
    words = re.sub(r"\w+", lambda found: NAMES.get(found[0], found[0]), words)
    return words + "_" if keyword.iskeyword(re.split(r"[ *]", words)[-1]) else words


def declared_struct(name: str, fields: str) -> str:
    """Return the declaration of a struct for Cython. An array counts as a pointer to its first element."""
    lines = [f"    ctypedef struct {cython_name(name) if name in NAMES else name}:"]
    for found in FIELD.finditer(re.sub(r"alignas\(\w+\) ", "", fields)):
        if not found["name"].startswith("reserved"):
            lines.append(f"        {found['type']} {'*' if found['sizes'] else ''}{found['name']}")
    return "\n".join(lines)


def declared_function(result: str, name: str, arguments: str) -> str:
    """Return the declaration of a function for Cython. `result` ends with a space or an asterisk."""
    kind = cython_type(result)
    given = [] if arguments == "void" else [cython_type(each) for each in arguments.split(",")]
    first = f"    {kind}{'' if kind.endswith('*') else ' '}{cython_name(name)}("
    whole = f"{first}{', '.join(given)}) noexcept"
    if len(whole) <= WIDTH:
        return whole
    words = ", ".join(each.replace(" ", "\0") for each in given)  # so that a line ends behind an argument
    indent = " " * 8
    lines = textwrap.fill(words, WIDTH, initial_indent=indent, subsequent_indent=indent).replace("\0", " ")
    return f"{first}\n{lines}\n    ) noexcept"


def declared_functions(text: str) -> str:
    """Return the declarations of all functions of a header without comments."""
    found = [declared_function(each["result"], each["name"], each["arguments"]) for each in FUNCTION.finditer(text)]
    assert len(found) == len(re.findall(r"\binline\b", text)), "a function has a form that FUNCTION does not know"
    return "\n".join(found)


def declared_header(header: str, texts: list[str], kinds: dict[str, str]) -> str:
    """Return the declarations of a header. `texts`: of the header and of those that it includes, without comments."""
    macros = [name for text in texts for name in MACRO.findall(text)]
    parts = ["\n".join(f"    {KINDS[kinds[name]]} {name}" for name in macros if kinds.get(name, "int") != "int")]
    numbers = [name for name in macros if kinds.get(name) == "int"]
    parts.append("\n".join(["    enum:", *(f"        {name}" for name in numbers)]) if numbers else "")
    for text in texts:
        for found in BLOCK.finditer(text):
            if found["name"]:
                parts.append(declared_struct(found["name"], found["fields"]))
            else:
                names = re.findall(r"^\s+(CYP_\w+)", found["values"], re.MULTILINE)
                parts.append("    enum:\n" + "\n".join(f"        {name}" for name in names))
    parts += [declared_functions(text) for text in texts]
    return f'cdef extern from "cyproducer/shm/{header}" nogil:\n' + "\n\n".join(part for part in parts if part) + "\n"


def protocol() -> str:
    """Return protocol.pxd with the declarations of all headers after what is written by hand."""
    shm = ROOT / "cyproducer" / "shm"
    texts = [[COMMENT.sub("", (shm / name).read_text()) for name in names] for names in HEADERS]
    kinds = kinds_of([name for of_header in texts for text in of_header for name in MACRO.findall(text)])
    blocks = [declared_header(names[-1], of_header, kinds) for names, of_header in zip(HEADERS, texts, strict=True)]
    before, _, _ = (shm / "protocol.pxd").read_text().partition(BEGIN)
    return before + BEGIN + "\n\n".join(blocks)


def codes() -> str:
    """Return codes.py. Its names are plain numbers: to make an enum of so many takes 2 ms at each start of a sender."""
    table = source("cyproducer.error_table").ERRORS
    first = '"""Names Kafka\'s error codes. tools/generate.py writes this file from error_table.py."""\n\n'
    return first + "".join(f"{table[number].name} = {number}\n" for number in sorted(table))


def error_codes() -> str:
    """Return error_codes.pxd: ERROR_ is a code of Kafka, CODE_ one of the client."""
    errors = source("cyproducer.errors")
    rows = [(f"ERROR_{entry.name}", code) for code, entry in source("cyproducer.error_table").ERRORS.items()]
    rows += [(f"CODE_{cls.kafka_name}", code) for code, cls in errors.CLIENT_CODES.items()]
    first = '"""Declares the error codes for native code. tools/generate.py writes this file from errors.py."""\n\n\n'
    return first + "cdef enum ErrorCode:\n" + "".join(f"    {name} = {code}\n" for name, code in rows)


def error_stub() -> str:
    """Return errors.pyi: the classes and codes that errors.py makes, and what it declares itself."""
    errors = source("cyproducer.errors")
    text = (ROOT / "cyproducer/errors.py").read_text()
    base = text.partition("class KafkaError(Exception):\n")[2].partition("\n\n\n")[0]
    lines = ["class KafkaError(Exception):"]
    lines += [f"    {found}" for found in re.findall(r"^    (\w+: [\w |]+?)(?: = .*)?$", base, re.MULTILINE)]
    lines += [f"    {found} ...\n" for found in re.findall(r"^    (def .*:)$", base, re.MULTILINE)]
    public = {name: value for name, value in vars(errors).items() if not name.startswith("_")}
    classes = {
        name: cls for name, cls in public.items() if isinstance(cls, type) and issubclass(cls, errors.KafkaError)
    }
    for name, cls in classes.items():
        if name == cls.__name__ != "KafkaError":
            bases = ", ".join(base.__name__ for base in cls.__bases__)
            code = f"  # {cls.code}" if "code" in vars(cls) else ""
            lines.append(f"class {name}({bases}): ...{code}")
    lines += ["", *(f"{name} = {cls.__name__}" for name, cls in classes.items() if name != cls.__name__)]
    lines += ["", *(f"{name}: int" for name, value in public.items() if isinstance(value, int))]
    lines += re.findall(r"^(\w+: Mapping\[.*\]) = ", text, re.MULTILINE)
    lines += ["", *(f"{found} ..." for found in re.findall(r"^(def [a-z].*:)$", text, re.MULTILINE))]
    first = '"""Declares the types of `cyproducer.errors`. tools/generate.py writes this file from errors.py."""\n\n'
    return first + "from collections.abc import Mapping\n\n" + "\n".join(lines) + "\n"


def message_versions() -> str:
    """Return message_versions.pxd with the facts that the native writers and readers of messages need."""
    schema = source("cyproducer.protocol.schema")

    def field(message: Any, path: str) -> Any:
        found = message
        for name in path.split("."):
            (found,) = [each for each in found.fields if each.name == name]
        return found

    produce, states = schema.ApiKey.PRODUCE, schema.ApiKey.DESCRIBE_PRODUCERS
    request, response = schema.REQUESTS[produce], schema.RESPONSES[produce]
    results = "responses.partition_responses"
    facts = {
        "PRODUCE_KEY": int(produce),
        "FLEXIBLE_FROM": request.flexible,
        "TOPIC_IDS_FROM": field(request, "topic_data.topic_id").first,
        "THROTTLES_FROM": schema.ROWS[produce].throttles_from,
        "LOG_START_FROM": field(response, f"{results}.log_start_offset").first,
        "RECORD_ERRORS_FROM": field(response, f"{results}.record_errors").first,
        "LEADER_HINTS_FROM": field(response, f"{results}.current_leader").first,
        "CURRENT_LEADER_TAG": field(response, f"{results}.current_leader").tag,
        "NODE_ENDPOINTS_TAG": field(response, "node_endpoints").tag,
        "DESCRIBE_PRODUCERS_KEY": int(states),
        "DESCRIBE_PRODUCERS_VERSION": schema.ROWS[states].last,
    }
    first = '"""Declares what native code takes from Kafka\'s definitions. tools/generate.py writes this file."""\n\n\n'
    return first + "cdef enum:\n" + "".join(f"    {name} = {value}\n" for name, value in facts.items())


def declared_enum(prefix: str, kind: type[IntEnum]) -> str:
    return f"cdef enum {kind.__name__}:\n" + "".join(f"    {prefix}_{each.name} = {each.value}\n" for each in kind)


def reasons() -> str:
    events = source("cyproducer.sender.engine.events")
    first = '"""Declares the reasons in events. tools/generate.py writes this file from events.py."""\n\n\n'
    return first + declared_enum("CLOSE", events.CloseReason) + "\n\n" + declared_enum("VIOLATION", events.Violation)


def states() -> str:
    """Return transaction.h with the states that are stored."""
    table = source("cyproducer.transaction_states").TransactionState
    stored = [each for each in table if each <= table.FATAL_ERROR]
    lines = "".join(f"    CYP_TRANSACTION_{each.name} = {each.value},\n" for each in stored)
    text = (ROOT / "cyproducer/shm/transaction.h").read_text()
    head, mark, rest = text.partition("enum cyp_transaction_state {\n")
    return head + mark + lines + "};" + rest.partition("};")[2]


def sensors() -> str:
    """Return sensors.h with the numbers of the sensors."""
    table = source("cyproducer.metric_table")
    text = (ROOT / "cyproducer/shm/sensors.h").read_text()
    for kind in ("OWN", "CLIENT", "TOPIC", "NODE", "NETWORK"):
        names = [name for name in getattr(table, kind) if name not in table.TIMES.values()]
        rows = "".join(
            f"    CYP_{kind}_{name.upper().replace('-', '_')} = {number},\n"
            for number, name in enumerate([*names, "sensors"])
        )
        head, mark, rest = text.partition(f"enum cyp_{kind.lower()}_sensor {{\n")
        text = head + mark + rows + "};" + rest.partition("};")[2]
    return re.sub(r"(#define CYP_OWN_TIMES) \d+u", rf"\1 {len(table.TIMES)}u", text)


def between(name: str, begin: str, end: str, lines: str) -> str:
    """Return the text of a file with other lines between the line `begin` and the text `end` that follows it."""
    head, mark, rest = (ROOT / name).read_text().partition(begin)
    assert mark, f"{name} has no line {begin!r}"
    return head + mark + lines + end + rest.partition(end)[2]


def attributes() -> str:
    """Return settings.py with the attributes of `Settings`."""
    lines = ""
    for row in source("cyproducer.config.table").SETTINGS:
        kind = row.kind.value or row.kind.given
        if row.attribute:
            lines += f"    {row.name}: {kind if row.default is None else kind.removesuffix(' | None')}\n"
    begin = "    # tools/generate.py writes the attributes up to `explicit` from table.py.\n"
    return between("cyproducer/config/settings.py", begin, "    explicit: ", lines)


def keywords() -> str:
    """Return producer.pyi with the settings that `KafkaProducer` accepts."""
    lines = "".join(
        f"        {row.name}: {row.kind.given} = ...,\n" for row in source("cyproducer.config.table").SETTINGS
    )
    begin = "        # tools/generate.py writes the arguments from cyproducer/config/table.py.\n"
    return between("cyproducer/producer/producer.pyi", begin, "    ) -> None: ...\n", lines)


def native_settings() -> str:
    """Return settings.pyx: the structs of settings, and the functions that fill them."""
    table = source("cyproducer.config.table")
    native = [row for row in table.SETTINGS if row.native is not None]
    for row in native:
        if row.side != table.SENDER and not row.sent:
            raise SystemExit(f"{row.name}: `native` needs side=SENDER or sent=True")
    parts = ['"""Declares the settings that the engine reads. tools/generate.py writes this file from table.py."""\n']
    for struct, function, rows in (
        ("SenderSettings", "read_sender_settings", [row for row in native if row.side == table.SENDER]),
        ("FrontEndSettings", "read_front_end_settings", [row for row in native if row.sent]),
    ):
        fields = "".join(f"    {row.native.type} {row.native.field}\n" for row in rows)
        parts.append(f"ctypedef struct {struct}:\n{fields}")
        lines = "".join(f"    into.{row.native.field} = {native_value(row)}\n" for row in rows)
        text = '    """Fill the struct. Raise TypeError for an invalid value."""\n'
        parts.append(f"cdef object {function}({struct} *into, dict settings):\n{text}{lines}")
    return "\n\n".join(parts)


def native_value(row: Any) -> str:
    """Return an expression for the value of a field. A missing setting, of an older version, has its default."""
    value = f'settings.get("{row.name}", {row.default!r})'
    if row.native.least is not None:
        value = f"max({value}, {row.native.least})"
    return value if row.native.factor == 1 else f"int({value} * {row.native.factor:_})"


#: In this order: protocol.pxd is made from the headers.
FILES = {
    "cyproducer/shm/sensors.h": sensors,
    "cyproducer/shm/transaction.h": states,
    "cyproducer/shm/protocol.pxd": protocol,
    "cyproducer/codes.py": codes,
    "cyproducer/protocol/error_codes.pxd": error_codes,
    "cyproducer/errors.pyi": error_stub,
    "cyproducer/protocol/message_versions.pxd": message_versions,
    "cyproducer/sender/engine/reasons.pyx": reasons,
    "cyproducer/config/settings.py": attributes,
    "cyproducer/producer/producer.pyi": keywords,
    "cyproducer/sender/engine/settings.pyx": native_settings,
}


def outdated() -> Iterator[tuple[Path, str]]:
    """Yield (file, its new text) of the files that are not what they are made from. Each text is made in its turn."""
    for name, make in FILES.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text() != text:
            yield path, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    chosen = parser.parse_args()
    count = 0
    for path, text in outdated():
        count += 1
        print(f"{'outdated' if chosen.check else 'written'}: {path.relative_to(ROOT)}")
        if not chosen.check:
            path.write_text(text)
    return 1 if chosen.check and count else 0


if __name__ == "__main__":
    sys.exit(main())
