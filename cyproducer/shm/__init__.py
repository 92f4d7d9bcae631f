"""Contains the shared memory of front-ends and the sender: layout, atomics, rings, chunk pool and wake-ups."""
