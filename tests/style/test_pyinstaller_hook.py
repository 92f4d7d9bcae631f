"""Tests that the hook of PyInstaller names what native modules import, which PyInstaller cannot find out."""

import re
import sys

from test_layering import cython_imports
from test_tidy import ROOT


def test_each_module_of_the_standard_library_is_named():
    found = set()
    for path in (ROOT / "cyproducer").rglob("*.pyx"):
        text = re.sub(r'"""[\s\S]*?"""|^.*\bcimport\b.*$', "", path.read_text(), flags=re.MULTILINE)
        found |= {name.split(".")[0] for name, _ in cython_imports(text)}
    wanted = {name for name in found if name in sys.stdlib_module_names}
    assert {"os", "array"} <= wanted
    hook = (ROOT / "cyproducer/pyinstaller/hook-cyproducer.py").read_text()
    assert {name for name in wanted if f'"{name}"' not in hook} == set()
