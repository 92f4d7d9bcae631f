"""Provides the command ``cyproducer`` and its subcommands."""
