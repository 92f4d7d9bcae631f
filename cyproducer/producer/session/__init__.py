"""A front-end's attachment to one sender, from attach to detach."""
