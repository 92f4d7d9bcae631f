"""Shared memory of front-ends and the sender: its layout, atomics, rings, chunk pool and wake-ups."""
