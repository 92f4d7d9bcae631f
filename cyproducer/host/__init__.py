"""Lets the processes of one host find each other: runtime directory, control messages, identity, descriptors."""
