"""Tests that the layout of shared memory does not change by accident, and that its list of fields is complete."""

import hashlib
import json
import re

from probe.native import layout
from support.build import SOURCE

from cyproducer.shm.native import LAYOUT_VERSION

#: {layout version: digest of the layout}. A change of the layout raises the version in layout.h, and adds a line here.
DIGESTS = {13: "795867c6554b4d77"}
HEADERS = ("layout.h", "sensors.h", "transaction.h", "crashpoint.h")
STRUCT = re.compile(r"typedef struct \{(.*?)\n\} (cyp_\w+);", re.S)
FIELD = re.compile(r"(\w+)(?:\[[^]]*\])*;")


def declared() -> dict[str, list[str]]:
    """Return the fields of each struct, as the headers declare them."""
    text = "\n".join((SOURCE / "shm" / name).read_text() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return {name: FIELD.findall(body) for body, name in STRUCT.findall(text)}


def test_every_field_is_listed() -> None:
    listed = {name: [field for field in fields if field] for name, fields in layout().items()}
    assert listed == declared()


def test_a_change_of_the_layout_has_a_new_version() -> None:
    regions = {name: fields for name, fields in layout().items() if name != "cyp_crash_page"}
    digest = hashlib.sha256(json.dumps(regions, sort_keys=True).encode()).hexdigest()[:16]
    assert DIGESTS.get(LAYOUT_VERSION) == digest
