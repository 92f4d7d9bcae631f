"""Implements a front-end's attachment to one sender, from attach to detach."""
