"""Calls the function of the application that returns OAuth tokens, and supplies the sender with them."""
