"""The front-end: what runs in an application's process."""
