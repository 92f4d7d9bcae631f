"""The ``cyproducer`` command."""
