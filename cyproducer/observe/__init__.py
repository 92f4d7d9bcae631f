"""What can be seen of a running sender: log, ledger of failures, status."""
