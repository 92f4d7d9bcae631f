"""Makes the client of a SASL mechanism from its name."""

from collections.abc import Callable

from cyproducer.security.gssapi import GssapiClient
from cyproducer.security.mechanism import Credentials, SaslClient, SaslError
from cyproducer.security.oauthbearer import OAuthBearerClient
from cyproducer.security.plain import PlainClient
from cyproducer.security.scram import SCRAM_HASHES, ScramClient

__all__ = ["Credentials", "SaslClient", "SaslError", "new_client"]

_Make = Callable[[Credentials, str], SaslClient]


def _scram(mechanism: str) -> _Make:
    return lambda credentials, host: ScramClient(mechanism, credentials)


_CLIENTS: dict[str, _Make] = {
    "PLAIN": lambda credentials, host: PlainClient(credentials),
    **{mechanism: _scram(mechanism) for mechanism in SCRAM_HASHES},
    "OAUTHBEARER": lambda credentials, host: OAuthBearerClient(credentials),
    "GSSAPI": GssapiClient,
}


def new_client(mechanism: str, credentials: Credentials, host: str) -> SaslClient:
    """Return a client for one authentication. Raise SaslError if the mechanism or the credentials cannot be used.

    host   name of the broker, as it was connected to; a part of its principal in Kerberos
    """
    if mechanism not in _CLIENTS:
        raise SaslError(f"the mechanism {mechanism!r} is not known; set sasl_mechanism to one of {', '.join(_CLIENTS)}")
    return _CLIENTS[mechanism](credentials, host)
