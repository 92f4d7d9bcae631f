"""Writes records into the arena, the shared memory of one front-end."""
