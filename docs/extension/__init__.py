"""The parts of the documentation that are generated from the source when the pages are built."""
