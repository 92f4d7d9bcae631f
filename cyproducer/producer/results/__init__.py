"""Keeps the names that pickles of earlier versions contain."""
