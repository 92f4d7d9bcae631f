"""The command ``cyproducer`` and its subcommands."""
