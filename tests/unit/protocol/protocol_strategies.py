"""Makes Hypothesis strategies for the bodies of messages from the tables of fields."""

import uuid

from hypothesis import strategies as st

SIZES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def values(field, version):
    """Return a strategy for the values that `version` can carry in `field`."""
    kind = field.type
    if kind.startswith("[]"):
        item = field._replace(type=kind[2:], nullable=1 << 20)
        plain = st.lists(values(item, version), max_size=3)
    elif kind == "struct":
        plain = body(field.fields, version)
    elif kind in SIZES:
        plain = st.integers(-(1 << SIZES[kind]), (1 << SIZES[kind]) - 1)
    else:
        plain = {
            "bool": st.booleans(),
            "uuid": st.uuids() | st.just(uuid.UUID(int=0)),
            "string": TEXT,
            "records": st.binary(max_size=200),
            "bytes": st.binary(max_size=200),
        }[kind]
    return st.none() | plain if version >= field.nullable else plain


def body(fields, version):
    """Return a strategy for whole dicts; fields that the version does not have are there as they are decoded."""
    members = {}
    for field in fields:
        if field.is_in(version):
            members[field.name] = values(field, version)
        else:
            members[field.name] = st.just(field.value_without())
    return st.fixed_dictionaries(members)


_BODIES = {}


def body_of(message, version):
    """Return the strategy for the bodies of one version of a message, which is made once."""
    key = message.name, version
    if key not in _BODIES:
        _BODIES[key] = body(message.fields, version)
    return _BODIES[key]


def every(tables):
    """Return (name, message, version) for each version of each message."""
    return [(m.name, m, v) for m in tables.values() for v in range(m.first, m.last + 1)]
