"""Tests that the page of the senders is part of the package, also of an installed one, and needs nothing else."""

import re
from importlib import resources


def test_the_page_is_in_the_package_and_loads_nothing() -> None:
    text = resources.files("cyproducer.observe").joinpath("page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "status.json" in text
    assert re.findall(r"""(?:src|href)=["']?(?!data:)""", text) == []
