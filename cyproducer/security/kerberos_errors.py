"""Says why Kerberos has failed, and what to do about it."""

import os
import time

from cyproducer.security.mechanism import Credentials, SaslError
from cyproducer.security.server_text import server_text

__all__ = ["kerberos_error"]

# Error codes of MIT Kerberos (krb5.h), as GSSAPI's minor codes have them.
_CLIENT_EXPIRED, _SERVER_EXPIRED, _CLIENT_UNKNOWN, _SERVER_UNKNOWN = -1765328383, -1765328382, -1765328378, -1765328377
_CLIENT_REVOKED, _PREAUTH_FAILED, _BAD_INTEGRITY = -1765328366, -1765328360, -1765328353
_TICKET_EXPIRED, _TICKET_NOT_YET_VALID, _SKEW, _SKEW_OF_KDC = -1765328352, -1765328351, -1765328347, -1765328236
_ENCRYPTION_UNKNOWN = -1765328370
_REALM_UNKNOWN, _KDC_UNREACHABLE = -1765328230, -1765328228
_CONFIG_UNREADABLE, _CONFIG_MALFORMED, _NO_DEFAULT_REALM = -1765328249, -1765328248, -1765328160
# KRB5_FCC_NOFILE, KRB5_CC_NOTFOUND; KG_TGT_MISSING, KG_EMPTY_CCACHE of its GSSAPI
_NO_TICKET = (-1765328189, -1765328243, 39756034, 39756044)
# KRB5_FCC_PERM, KRB5_CC_FORMAT, KRB5_CCACHE_BADVNO, KRB5_CC_BADNAME
_CACHE_UNREADABLE = (-1765328190, -1765328185, -1765328172, -1765328245)
_OTHER_PRINCIPAL = 39756032  # KG_CCACHE_NOMATCH
_SIGN, _CODES = 1 << 31, 1 << 32


def kerberos_error(error: BaseException, target: str, credentials: Credentials) -> SaslError:
    """Return what failed, why, and what to do. `target` is the service of the broker, as in ``kafka@host``."""
    code = getattr(error, "min_code", 0)
    code = code - _CODES if code >= _SIGN else code
    why = _why(code, error, target, credentials)
    text = f"Kerberos failed for the service {target}: {why or _general(error)}"
    return SaslError(text, retryable=not why or code == _KDC_UNREACHABLE)


def _why(code: int, error: BaseException, target: str, credentials: Credentials) -> str:
    """Return why it has failed, and what to do; "" if that is not known."""
    if code == _SERVER_UNKNOWN:
        service, _, host = target.partition("@")
        return (
            f"the KDC does not know the principal {service}/{host}; check sasl_kerberos_service_name, and that the "
            "host name in bootstrap_servers and advertised.listeners is the one of the broker's principal; if it is "
            "not, set sasl_kerberos_domain_name"
        )
    if code in (_KDC_UNREACHABLE, _REALM_UNKNOWN):
        what = "no KDC of the realm answers" if code == _KDC_UNREACHABLE else "no KDC of the realm is known"
        return f"{what} ({_text(error)}); check {_configuration()}, the KDC, and the network between it and this host"
    if code in (_SKEW, _SKEW_OF_KDC, _TICKET_NOT_YET_VALID):
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return (
            f"the clocks of this host and of the KDC differ too much ({_text(error)}); correct them; that of this "
            f"host shows {now}"
        )
    if code in (_CONFIG_UNREADABLE, _CONFIG_MALFORMED, _NO_DEFAULT_REALM):
        return f"the configuration cannot be used ({_text(error)}); correct {_configuration()}"
    if credentials.kerberos_keytab is not None:
        return _why_not_by_keytab(code, credentials.kerberos_keytab, credentials.kerberos_principal or "")
    return _why_not_by_ticket(code, credentials)


def _general(error: BaseException) -> str:
    return (
        f"{_text(error)}; check the ticket (klist) or the keytab (klist -k), sasl_kerberos_service_name, the broker's "
        "host name, and the clocks of this host and of the KDC"
    )


def _why_not_by_keytab(code: int, keytab: str, principal: str) -> str:
    if not os.access(keytab, os.R_OK):
        return f"the keytab {keytab} cannot be read; check sasl_kerberos_keytab and the rights of the file"
    if code in _NO_TICKET:
        return (
            f"the keytab {keytab} has no key of {principal}; compare sasl_kerberos_principal with `klist -k {keytab}`"
        )
    if code in (_PREAUTH_FAILED, _BAD_INTEGRITY):
        return (
            f"the KDC has another key of {principal} than the keytab {keytab}; get a new keytab (the key has changed "
            "since this one was made)"
        )
    if code == _ENCRYPTION_UNKNOWN:
        return f"KDC and keytab {keytab} have no type of encryption in common; get a new keytab"
    return _why_not_this_principal(code, principal)


def _why_not_by_ticket(code: int, credentials: Credentials) -> str:
    cache = credentials.kerberos_ticket_cache
    shown = f"the ticket cache {cache}" if cache else "the default ticket cache"
    again = "get one with kinit, or set sasl_kerberos_keytab and sasl_kerberos_principal"
    if code in _NO_TICKET:
        where = "" if cache else "; if it is in another cache, set sasl_kerberos_ticket_cache or KRB5CCNAME"
        return f"{shown} has no ticket; {again}{where}"
    if code == _TICKET_EXPIRED:
        return f"the ticket in {shown} has expired; {again}, with which tickets are renewed"
    if code in _CACHE_UNREADABLE:
        return f"{shown} cannot be read; check sasl_kerberos_ticket_cache, KRB5CCNAME and the rights of the file"
    if code == _OTHER_PRINCIPAL:
        return f"{shown} has a ticket of another client than {credentials.kerberos_principal}; {again}"
    return _why_not_this_principal(code, credentials.kerberos_principal or "the client")


def _why_not_this_principal(code: int, principal: str) -> str:
    if code == _CLIENT_UNKNOWN:
        return f"the KDC does not know the principal {principal}; correct sasl_kerberos_principal and its realm"
    if code in (_CLIENT_EXPIRED, _CLIENT_REVOKED):
        return f"the principal {principal} has expired or is locked; its administrator must renew it"
    if code == _SERVER_EXPIRED:
        return "the principal of the broker has expired; its administrator must renew it"
    return ""


def _configuration() -> str:
    return os.environ.get("KRB5_CONFIG") or "/etc/krb5.conf"


def _text(error: BaseException) -> str:
    """Return the text of the minor code, which says what has happened, without that of the major code."""
    return server_text(str(error).rpartition("Minor (")[2].partition("): ")[2] or str(error), ())
