"""Configuration of the documentation site. `tox -e lint` builds it, with warnings as errors."""

import sys
from pathlib import Path

import cyproducer

sys.path.insert(0, str(Path(__file__).parent))

project = "cyproducer"
author = "The cyproducer authors"
copyright = "the cyproducer authors, Apache License 2.0"
version = release = cyproducer.__version__

extensions = ["myst_parser", "sphinx_copybutton", "extension.generated"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}
exclude_patterns = ["extension", "_static"]
nitpicky = True
# Types of other libraries, which the signatures name and this site does not describe.
OWN = r"KafkaProducer|Future\b|BulkFuture|RecordMetadata|ArrayMetadata|TopicPartition"
nitpick_ignore_regex = [("py:.*", rf"(?!{OWN}).*")]
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"cyproducer {version}"
html_static_path = ["_static"]
