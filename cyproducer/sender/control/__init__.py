"""Runs the control plane of the sender: attaches front-ends, receives their topic requests, and releases them."""
