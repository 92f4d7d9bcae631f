"""Writes the declarations for native code that are stated elsewhere: run it after a change of what they are made from.

- the layout of shared memory in cyproducer/shm/protocol.pxd, from the C headers
- Kafka's error codes in cyproducer/protocol/error_codes.pxd, from cyproducer/error_table.py
- the reasons of events in cyproducer/sender/engine/reasons.pyx, from cyproducer/sender/engine/events.py
- the phases in cyproducer/sender/engine/transaction_state.py, from cyproducer/shm/transaction.h

`--check` writes nothing, and ends with status 1 if a file would change.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from enum import IntEnum
from importlib import util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ("sizes.h", "sensors.h", "transaction.h", "layout.h")
BEGIN, END = "# The layout, generated from the headers by tools/generate.py.\n", "# The end of the layout.\n"
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MACRO = re.compile(r"^#define (CYP_[A-Z0-9_]+) +\S", re.MULTILINE)
BLOCK = re.compile(
    r"typedef struct \{(?P<fields>.*?)^\} (?P<name>\w+);|^enum \w+ \{(?P<values>.*?)\};", re.DOTALL | re.MULTILINE
)
FIELD = re.compile(r"(?P<type>\w+) (?P<name>\w+)(?P<sizes>(?:\[[^\]]*\])*);")
#: What the compiler says of a macro, and how Cython declares it: the members of an enum can be sizes of arrays.
KINDS = {
    "int": "enum",
    "unsigned": "const uint32_t",
    "unsigned long": "const uint64_t",
    "unsigned long long": "const uint64_t",
}


def module_at(path: Path) -> ModuleType:
    """Return a module of Python by its file: the package need not be built."""
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def kinds_of(macros: list[str]) -> dict[str, str]:
    """Ask the C compiler for the types of macros, and return {macro: a key of KINDS}; others are left out."""
    words = ", ".join(f'{kind}: "{kind}"' for kind in KINDS)
    lines = "\n".join(f'puts("{name} " _Generic(({name}), {words}, default: ""));' for name in macros)
    text = f'#include <stdio.h>\n#include "cyproducer/shm/layout.h"\nint main(void) {{\n{lines}\nreturn 0;\n}}\n'
    text = re.sub(r'puts\("(\w+) " (_Generic.*)\);', r'printf("\1 %s\\n", \2);', text)
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    program = ROOT / "build" / "kinds"
    program.parent.mkdir(exist_ok=True)
    command = [*compiler, "-std=gnu11", "-w", f"-I{ROOT}", "-x", "c", "-", "-o", str(program)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the headers cannot be compiled:\n{done.stderr}")
    try:
        rows = subprocess.check_output([str(program)], text=True).splitlines()
    finally:
        program.unlink()
    return {name: kind for name, _, kind in (row.partition(" ") for row in rows) if kind in KINDS}


def declared_struct(name: str, fields: str) -> str:
    """Return the declaration of a struct for Cython. An array counts as a pointer to its first element."""
    lines = [f"    ctypedef struct {name}:"]
    for found in FIELD.finditer(re.sub(r"alignas\(\w+\) ", "", fields)):
        if not found["name"].startswith("reserved"):
            lines.append(f"        {found['type']} {'*' if found['sizes'] else ''}{found['name']}")
    return "\n".join(lines)


def layout() -> str:
    """Return what protocol.pxd says of the layout."""
    texts = [COMMENT.sub("", (ROOT / "cyproducer" / "shm" / name).read_text()) for name in HEADERS]
    macros = [name for text in texts for name in MACRO.findall(text)]
    kinds = kinds_of(macros)
    parts = ['cdef extern from "cyproducer/shm/layout.h" nogil:']
    parts.append("\n".join(f"    {KINDS[kinds[name]]} {name}" for name in macros if kinds.get(name, "int") != "int"))
    numbers = [name for name in macros if kinds.get(name) == "int"]
    parts.append("    enum:\n" + "\n".join(f"        {name}" for name in numbers))
    for text in texts:
        for found in BLOCK.finditer(text):
            if found["name"]:
                parts.append(declared_struct(found["name"], found["fields"]))
            else:
                names = re.findall(r"^\s+(CYP_\w+)", found["values"], re.MULTILINE)
                parts.append("    enum:\n" + "\n".join(f"        {name}" for name in names))
    return "\n\n".join(part for part in parts if part) + "\n"


def protocol() -> str:
    text = (ROOT / "cyproducer/shm/protocol.pxd").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{layout()}\n\n{END}{after}"


def error_codes() -> str:
    table = module_at(ROOT / "cyproducer/error_table.py").ERRORS
    lines = "".join(f"    ERROR_{table[number].name} = {number}\n" for number in sorted(table))
    text = (ROOT / "cyproducer/protocol/error_codes.pxd").read_text()
    head, mark, _ = text.partition("cdef enum ErrorCode:\n")
    return head + mark + lines


def declared_enum(prefix: str, kind: type[IntEnum]) -> str:
    return f"cdef enum {kind.__name__}:\n" + "".join(f"    {prefix}_{each.name} = {each.value}\n" for each in kind)


def reasons() -> str:
    events = module_at(ROOT / "cyproducer/sender/engine/events.py")
    first = '"""Declares the reasons in events. tools/generate.py writes this file from events.py."""\n\n\n'
    return first + declared_enum("CLOSE", events.CloseReason) + "\n\n" + declared_enum("VIOLATION", events.Violation)


def phases() -> str:
    """Return transaction_state.py with the phases of the header, in its order."""
    header = (ROOT / "cyproducer/shm/transaction.h").read_text()
    values = header.partition("enum cyp_transaction_phase {")[2].partition("}")[0]
    names = re.findall(r"^\s+CYP_TRANSACTION_(\w+) = (\d+)", values, re.MULTILINE)
    assert [int(number) for _, number in names] == list(range(len(names)))
    lines = "".join(f'    {name} = "{name.lower()}"\n' for name, _ in names)
    text = (ROOT / "cyproducer/sender/engine/transaction_state.py").read_text()
    return re.sub(r'(?m)^(?:    [A-Z]+ = "[a-z]+"\n)+', lines, text, count=1)


FILES = {
    "cyproducer/shm/protocol.pxd": protocol,
    "cyproducer/protocol/error_codes.pxd": error_codes,
    "cyproducer/sender/engine/reasons.pyx": reasons,
    "cyproducer/sender/engine/transaction_state.py": phases,
}


def outdated() -> dict[str, str]:
    """Return {file: its new text} of the files that are not what they are made from."""
    made = {name: make() for name, make in FILES.items()}
    return {
        name: text for name, text in made.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    chosen = parser.parse_args()
    found = outdated()
    for name, text in found.items():
        print(f"{'outdated' if chosen.check else 'written'}: {name}")
        if not chosen.check:
            (ROOT / name).write_text(text)
    return 1 if chosen.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
