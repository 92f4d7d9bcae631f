"""What front-ends and the sender share: the layout of memory, its atomics, rings, pools, and waiting."""
