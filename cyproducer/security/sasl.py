"""Makes the client of a SASL mechanism from its name."""

from cyproducer.security.gssapi import GssapiClient
from cyproducer.security.mechanism import Credentials, SaslClient, SaslError
from cyproducer.security.oauthbearer import OAuthBearerClient
from cyproducer.security.plain import PlainClient
from cyproducer.security.scram import SCRAM_HASHES, ScramClient

__all__ = ["Credentials", "SaslClient", "SaslError", "new_client"]


def new_client(mechanism: str, credentials: Credentials, host: str) -> SaslClient:
    """Return a client for one authentication. Raise SaslError if the mechanism or the credentials cannot be used.

    host   name of the broker, as it was connected to; a part of its principal in Kerberos
    """
    if mechanism in SCRAM_HASHES:
        return ScramClient(mechanism, credentials)
    if mechanism == "PLAIN":
        return PlainClient(credentials)
    if mechanism == "OAUTHBEARER":
        return OAuthBearerClient(credentials)
    if mechanism == "GSSAPI":
        return GssapiClient(credentials, host)
    raise SaslError(f"sasl_mechanism is {mechanism!r}, which is no mechanism that is supported")
