"""Says why a TLS connection has failed, and what to do about it."""

import ssl
import time

from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.validity import describe_validity, shown_time

__all__ = ["describe_tls_error"]

# X509_V_ERR_... of OpenSSL (x509_vfy.h).
UNTRUSTED = (2, 18, 19, 20, 21)
NOT_YET_VALID, EXPIRED, REVOKED = 9, 10, 23
NO_CRL, CRL_NOT_YET_VALID, CRL_EXPIRED = 3, 11, 12
WRONG_NAME = (62, 64)
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


def describe_tls_error(error: BaseException, host: str, own: OwnCertificate | None = None) -> str:
    """Return what failed, why, and what to do.

    host   the name that the certificate must have
    own    the certificate of this client
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is refused: {_why_refused(error, host)}"
    # The loop reports the end of a connection that is in use by itself.
    if isinstance(error, ssl.SSLEOFError | ConnectionError | ssl.SSLZeroReturnError):
        return (
            "the connection was closed during the TLS handshake: the listener may not use TLS; check the port and "
            "security_protocol, and whether the broker wants a client certificate (ssl_certfile)"
        )
    if isinstance(error, ssl.SSLError):
        return _describe_ssl_error(error, own)
    if isinstance(error, OSError):
        return f"TLS failed: {error.strerror or error}"
    return f"TLS failed: {error}"


def _why_refused(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code in WRONG_NAME:
        return (
            f"it is not for {host}; use a name of the certificate in bootstrap_servers and advertised.listeners, or "
            f"give the broker a certificate for {host}"
        )
    now = shown_time(time.time())
    if code == EXPIRED:
        return f"it, or one of its chain, has expired; renew it, or correct this host's clock ({now})"
    if code == NOT_YET_VALID:
        return f"it, or one of its chain, is not valid yet; correct this host's clock ({now}), or renew it"
    if code == REVOKED:
        return "it is revoked (ssl_crlfile); give the broker another one"
    if code == NO_CRL:
        return "ssl_crlfile has no list of its authority; add the list"
    if code in (CRL_NOT_YET_VALID, CRL_EXPIRED):
        state = "has expired" if code == CRL_EXPIRED else "is not valid yet"
        return f"the revocation list in ssl_crlfile {state}; give a newer list, or correct this host's clock ({now})"
    if code in UNTRUSTED:
        return (
            f"no trusted authority has signed it ({error.verify_message}); give the certificate of the broker's "
            "authority as ssl_cafile"
        )
    return f"{error.verify_message}; replace the broker's certificate"


def _describe_ssl_error(error: ssl.SSLError, own: OwnCertificate | None) -> str:
    reason = error.reason or ""
    if reason in NO_TLS:
        return "the broker does not use TLS on this port; check the port, or use security_protocol without SSL"
    if "CERTIFICATE_REQUIRED" in reason:
        return "the broker wants a client certificate; give ssl_certfile and ssl_keyfile"
    if ("ALERT" in reason and "CERTIFICATE" in reason) or "UNKNOWN_CA" in reason:
        why = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        clock = describe_validity("it", *own.validity(), time.time()) if own is not None else ""
        clock += ". Else " if clock else ""
        return (
            f"the broker refuses this client's certificate, or there is none ({why}); {clock}"
            "use one that is valid by the broker's clock, and signed by an authority that the broker trusts "
            "(ssl_certfile, ssl_keyfile)"
        )
    if "HANDSHAKE_FAILURE" in reason or "NO_SHARED_CIPHER" in reason:
        return (
            "broker and client have no cipher in common, or the broker wants a client certificate; check ssl_ciphers, "
            "ssl_certfile and the broker's ssl.cipher.suites"
        )
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return "broker and client have no TLS version in common; check ssl_enabled_protocols on both sides"
    return f"TLS failed ({(reason or str(error)).replace('_', ' ').lower()})"
