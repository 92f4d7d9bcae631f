"""The native core of a front-end."""
