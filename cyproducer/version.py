"""The version of this software. A leaf: the build reads it without importing the package."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
