"""The supervisor and the sender process, and the files that they write."""
