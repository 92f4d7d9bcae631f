"""Says why a TLS connection has failed, and what to do about it."""

import ssl
import time

from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.validity import describe_validity, shown_time

__all__ = ["describe_tls_error"]

# X509_V_ERR_... of OpenSSL (x509_vfy.h).
UNTRUSTED = (2, 18, 19, 20, 21)
OTHER_DATES = (9, 10, 11, 12)  # of a certificate, or of a list of revoked ones
WRONG_NAME = (62, 64)
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


def describe_tls_error(error: BaseException, own: OwnCertificate | None = None) -> str:
    """Return what failed, why, and what to do. `own`: the certificate of this client.

    OpenSSL's text says why a certificate is refused. Of other failures it has the name of an alert or of a state, which
    does not say what the broker wants.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is refused: {error.verify_message.rstrip('.')}; {_advice(error.verify_code)}"
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


def _advice(code: int) -> str:
    """Return what to do about a certificate that OpenSSL refuses for this reason."""
    if code in UNTRUSTED:
        return "give the certificate of the broker's authority as ssl_cafile"
    if code in WRONG_NAME:
        return "use a name of the certificate in bootstrap_servers and advertised.listeners"
    if code in OTHER_DATES:
        return f"renew it, or correct this host's clock ({shown_time(time.time())})"
    return "replace the certificate, or the list of revoked ones (ssl_crlfile)"


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
