"""Tests that a part of a structure is written only by the file whose name it has: `lane.drain.ready` by drain.pyx.

The rule is in cyproducer/sender/engine/model.pyx. It is checked by the text alone: an assignment, an augmented one, and
what memset(), memcpy() and memmove() fill. An element of an array counts as its field, and so does a member of a field
that is a structure. `ownership.txt` lists the exceptions, which only become fewer.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "cyproducer" / "sender" / "engine"
FILES = {path.stem: path.read_text() for path in sorted(ENGINE.glob("*.pyx"))}
EXCEPTIONS = Path(__file__).with_name("ownership.txt")

STRUCTURE = re.compile(r"^ctypedef struct (\w+):.*\n((?:    .*\n)+)", re.MULTILINE)
MEMBERS = re.compile(r"^    (?:const )?(\w+)(?:\[\w+\])? +([^#\n]+)", re.MULTILINE)
NO_CODE = re.compile(r'"""(?:.|\n)*?"""|"(?:[^"\\\n]|\\.)*"|#.*')
INDEX = r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
TARGET = rf"[\w.]+(?:{INDEX}[\w.]*)*"
ASSIGNED = re.compile(rf"({TARGET}) (?:[-+*|&^]|//|<<|>>)?=(?!=)")
SEVERAL_ASSIGNED = re.compile(rf"^ *({TARGET}(?:, {TARGET})+) = ", re.MULTILINE)
FILLED = re.compile(rf"\bmem(?:set|cpy|move)\(\s*&?({TARGET})\s*[,+]")


def structures(model: str) -> dict[str, dict[str, str]]:
    """Return {structure: {name of a member: its type}}. The type of a pointer ends with an asterisk."""
    found: dict[str, dict[str, str]] = {}
    for structure, body in STRUCTURE.findall(model):
        members = found[structure] = {}
        for type_, names in MEMBERS.findall(body):
            for name in names.split(","):
                pointer = "*" if "*" in name else ""
                members[name.strip(" *").partition("[")[0]] = type_ + pointer
    return found


def fields(model: str, files: set[str]) -> dict[str, bool]:
    """Return {"part.field": whether the field is a structure itself} for the fields of all parts.

    A part is a member that is a structure and has the name of a file.
    """
    declared = structures(model)
    return {
        f"{part}.{field}": type_ in declared
        for members in declared.values()
        for part, structure in members.items()
        if part in files and structure in declared
        for field, type_ in declared[structure].items()
    }


def writes(code: str, owned: dict[str, bool]) -> set[str]:
    """Return "part.field" for each field of a part that the code writes."""
    code = NO_CODE.sub("", code)
    targets = ASSIGNED.findall(code) + FILLED.findall(code)
    for several in SEVERAL_ASSIGNED.findall(code):
        targets += re.findall(TARGET, several)
    found = set()
    for target in targets:
        names = re.sub(INDEX, "", target).split(".")
        field, outer = ".".join(names[-2:]), ".".join(names[-3:-1])
        if len(names) > 2 and field in owned:
            found.add(field)
        if len(names) > 3 and owned.get(outer):
            found.add(outer)
    return found


def foreign_writes() -> set[str]:
    """Return "file: part.field" for each field that another file than its own writes."""
    owned = fields(FILES["model"], set(FILES))
    return {
        f"{file}.pyx: {field}"
        for file, code in FILES.items()
        for field in writes(code, owned)
        if field.partition(".")[0] != file
    }


def test_each_part_is_written_by_its_file() -> None:
    """A new exception is no solution: call a function of the file that owns the field."""
    found = sorted(foreign_writes() - set(EXCEPTIONS.read_text().splitlines()))
    assert not found, "written outside of the file that owns it:\n" + "\n".join(found)


def test_every_exception_is_needed() -> None:
    exceptions = EXCEPTIONS.read_text().splitlines()
    assert exceptions == sorted(set(exceptions))
    unused = sorted(set(exceptions) - foreign_writes())
    assert not unused, f"remove these lines from {EXCEPTIONS.name}:\n" + "\n".join(unused)


OWNED = fields(
    """
ctypedef struct Usage:
    uint32_t entries


ctypedef struct LaneDrain:
    uint32_t ready, *counts         # a comment
    Lane *first
    Usage used


ctypedef struct Lane:
    uint32_t index
    LaneDrain drain
    Usage common
""",
    {"drain", "wire"},
)


def test_the_fields_of_parts_are_known() -> None:
    assert OWNED == {"drain.ready": False, "drain.counts": False, "drain.first": False, "drain.used": True}


def test_a_write_is_found() -> None:
    assert writes("    lane.drain.ready = 1\n", OWNED) == {"drain.ready"}
    assert writes("    core.lanes[lanes[0]].drain.ready += 1\n", OWNED) == {"drain.ready"}
    assert writes("    (<Lane *>found).drain.ready //= 2\n", OWNED) == {"drain.ready"}
    assert writes("    lane.index = other.drain.ready = 1\n", OWNED) == {"drain.ready"}
    assert writes("    lane.index, lane.drain.ready = 1, 2\n", OWNED) == {"drain.ready"}
    assert writes("    lane.drain.counts[2 * at[0]] |= 1\n", OWNED) == {"drain.counts"}
    assert writes("    lane.drain.used.entries -= 1\n", OWNED) == {"drain.used"}
    assert writes("    memset(&lane.drain.used, 0, sizeof(Usage))\n", OWNED) == {"drain.used"}
    assert writes("    memset(lane.drain.counts, 0, 8)\n", OWNED) == {"drain.counts"}


def test_a_read_is_not_found() -> None:
    assert writes("    if lane.drain.ready == 1 or lane.drain.ready >= 2:\n", OWNED) == set()
    assert writes("    ready = lane.drain.ready  # lane.drain.ready = 1\n", OWNED) == set()
    assert writes("    lane.drain.first.index = 1\n", OWNED) == set()
    assert writes("    lane.index = lane.drain.ready\n", OWNED) == set()
    assert writes("    memcpy(to, lane.drain.counts, 8)\n", OWNED) == set()
