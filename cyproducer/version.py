"""Holds the version of this software. The build reads this file without importing the package."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
