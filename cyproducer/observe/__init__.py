"""Shows what a sender does: its log, its ledger of failures, its status."""
