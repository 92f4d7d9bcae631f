"""Holds how a client secures its connections: TLS, the SASL mechanisms, and where OAuth tokens come from."""
