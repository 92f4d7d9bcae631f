"""Generates parts of the documentation from the source when the pages are built."""
