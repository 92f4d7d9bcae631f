"""Chooses and runs the environments of tox: all of them for a commit, or those that a change needs."""
