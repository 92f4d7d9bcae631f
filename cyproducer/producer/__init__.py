"""Implements the front-end: the code that runs in the process of an application."""
