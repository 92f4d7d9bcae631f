"""Tests that the layout of shared memory does not change by accident."""

import hashlib
import json

from probe.native import layout

from cyproducer.shm.native import LAYOUT_VERSION

#: {layout version: digest of the layout}. A change of the layout raises the version in layout.h, and adds a line here.
DIGESTS = {14: "9a77136f9ae07efa"}


def test_a_change_of_the_layout_has_a_new_version() -> None:
    regions = {name: fields for name, fields in layout().items() if name != "cyp_crash_page"}
    digest = hashlib.sha256(json.dumps(regions, sort_keys=True).encode()).hexdigest()[:16]
    assert DIGESTS.get(LAYOUT_VERSION) == digest
