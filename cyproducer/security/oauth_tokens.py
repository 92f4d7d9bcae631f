"""Gathers where OAuth tokens come from: an endpoint or a file, and the thread that keeps a token fresh."""

from cyproducer.security.token_endpoint import TokenEndpoint
from cyproducer.security.token_file import TokenFile
from cyproducer.security.token_refresher import TokenRefresher
from cyproducer.security.token_source import Clock, Token, TokenError, TokenSource

__all__ = ["Clock", "Token", "TokenEndpoint", "TokenError", "TokenFile", "TokenRefresher", "TokenSource"]
