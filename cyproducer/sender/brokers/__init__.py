"""Connects to brokers: host names, addresses, ApiVersions, metadata and producer ids."""
