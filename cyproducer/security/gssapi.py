"""Authenticates with the mechanism GSSAPI (RFC 4752), which is Kerberos, by the package gssapi.

After the context of Kerberos is established, client and broker agree on a security layer. Kafka has none, so the client
chooses "no layer"; TLS protects the connection instead.
"""

import importlib
import os
from typing import Any

from cyproducer.security.mechanism import Credentials, SaslError
from cyproducer.security.server_text import server_text

__all__ = ["GssapiClient", "use_configuration"]

_NO_LAYER = 1
_LAYERS_BYTES = 4  # a bit mask of layers, and the greatest size of a message in three bytes
_CHOICE = bytes([_NO_LAYER, 0, 0, 0])  # the size must be 0 for a client without a layer (RFC 4752, section 3.1)
_STEPS_MAX = 8  # Kerberos needs two; a broker must not keep the exchange going forever
#: How long a connection waits while another one asks the KDC. The setup of a connection may take 10 s by default.
_KDC_WAIT_S = 8.0

_START, _ESTABLISHING, _CHOOSING, _CHOSEN, _ENDED = range(5)

# GSSAPI's minor codes are the error codes of MIT Kerberos (krb5.h). After these, somebody has to repair something.
_NO_TICKET = frozenset(
    {
        -1765328243,  # KRB5_CC_NOTFOUND
        -1765328189,  # KRB5_FCC_NOFILE
        39756034,  # KG_TGT_MISSING
        39756044,  # KG_EMPTY_CCACHE
    }
)
_FINAL = _NO_TICKET | {
    -1765328383,  # KRB5KDC_ERR_NAME_EXP
    -1765328382,  # KRB5KDC_ERR_SERVICE_EXP
    -1765328378,  # KRB5KDC_ERR_C_PRINCIPAL_UNKNOWN
    -1765328377,  # KRB5KDC_ERR_S_PRINCIPAL_UNKNOWN
    -1765328366,  # KRB5KDC_ERR_CLIENT_REVOKED
    -1765328351,  # KRB5KRB_AP_ERR_TKT_NYV
    -1765328347,  # KRB5KRB_AP_ERR_SKEW
    -1765328249,  # KRB5_CONFIG_CANTOPEN
    -1765328248,  # KRB5_CONFIG_BADFORMAT
    -1765328236,  # KRB5_KDCREP_SKEW
    -1765328230,  # KRB5_REALM_UNKNOWN
    -1765328160,  # KRB5_CONFIG_NODEFREALM
}
_FINAL_WITH_KEYTAB = _FINAL | {
    -1765328370,  # KRB5KDC_ERR_ETYPE_NOSUPP
    -1765328360,  # KRB5KDC_ERR_PREAUTH_FAILED
    -1765328353,  # KRB5KRB_AP_ERR_BAD_INTEGRITY
}
_FINAL_WITH_TICKET = _FINAL | {
    -1765328352,  # KRB5KRB_AP_ERR_TKT_EXPIRED
    -1765328245,  # KRB5_CC_BADNAME
    -1765328190,  # KRB5_FCC_PERM
    -1765328185,  # KRB5_CC_FORMAT
    -1765328172,  # KRB5_CCACHE_BADVNO
    39756032,  # KG_CCACHE_NOMATCH
}
_SIGN, _CODES = 1 << 31, 1 << 32


def use_configuration(path: str | None) -> None:
    """Let this process use these files as the configuration of Kerberos; None: those of its environment."""
    if path is not None:
        os.environ["KRB5_CONFIG"] = path


class GssapiClient:
    """The client of GSSAPI. Raise SaslError if the package gssapi is missing.

    respond() may send requests to the KDC and wait for its answers.
    """

    mechanism = "GSSAPI"
    may_block = True
    secrets: tuple[str, ...] = ()  # tickets are for one service and one exchange
    advice = "compare the broker's clock and keytab with those of the KDC; the broker's log has the reason"

    def __init__(self, credentials: Credentials, host: str) -> None:
        self.complete = False
        self.server_error = ""
        self._gssapi = _load()
        self._credentials = credentials
        self._target = f"{credentials.kerberos_service_name}@{credentials.kerberos_domain_name or host}"
        self._context: Any = None
        self._steps = 0
        self._state = _START

    def __repr__(self) -> str:
        return f"GssapiClient({self._target!r})"

    def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the next token of Kerberos, then the choice of the security layer, then None."""
        state, self._state = self._state, _ENDED
        if (challenge is None) != (state == _START) or state == _ENDED:
            raise SaslError("a message of GSSAPI arrived out of order; begin a new authentication")
        if state == _CHOSEN:
            self.complete = True
            return None
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise SaslError("the broker does not end the exchange of GSSAPI; check that the listener uses Kerberos")
        try:
            if challenge is not None and state == _CHOOSING:
                return self._choose(challenge)
            token = self._begin() if self._context is None else self._context.step(challenge)
            self._state = _CHOOSING if self._context.complete else _ESTABLISHING
        except (self._gssapi.exceptions.GSSError, NotImplementedError) as error:
            raise _error(error, self._target, self._credentials) from None
        return bytes(token or b"")

    def _begin(self) -> bytes | None:
        """Return the first token of Kerberos, for which the KDC may be asked.

        One client at a time does it. With a keytab, the library replaces the content of the cache when it gets a new
        ticket, and another client could find the cache empty.
        """
        lock = self._credentials.kerberos_lock
        if not lock.acquire(timeout=_KDC_WAIT_S):
            raise SaslError(
                f"Kerberos failed for the service {self._target}: another connection waits for an answer of the KDC "
                "for a long time; check that the KDC works, and the network between it and this host",
                retryable=True,
            )
        try:
            self._context = self._new_context()
            token: bytes | None = self._context.step(None)
            return token
        finally:
            lock.release()

    def _new_context(self) -> Any:
        gssapi = self._gssapi
        flag = gssapi.RequirementFlag
        return gssapi.SecurityContext(
            name=gssapi.Name(self._target, name_type=gssapi.NameType.hostbased_service),
            creds=self._acquire(),
            mech=gssapi.MechType.kerberos,
            flags=[flag.mutual_authentication, flag.integrity, flag.out_of_sequence_detection],
            usage="initiate",
        )

    def _acquire(self) -> Any:
        """Return the credentials of Kerberos, or None for those of the default cache.

        With a keytab, the library gets a ticket if there is none, and another one after half of its lifetime.
        """
        given = self._credentials
        store = {}
        if given.kerberos_keytab is not None:
            # A cache in memory, so that the tickets of this process do not replace those of the user.
            cache = f"MEMORY:cyproducer:{given.kerberos_principal}"
            store = {"client_keytab": given.kerberos_keytab, "ccache": cache}
        elif given.kerberos_ticket_cache is not None:
            store = {"ccache": given.kerberos_ticket_cache}
        if not store and given.kerberos_principal is None:
            return None
        gssapi = self._gssapi
        name = None
        if given.kerberos_principal is not None:
            name = gssapi.Name(given.kerberos_principal, name_type=gssapi.NameType.kerberos_principal)
        return gssapi.Credentials(name=name, mechs=[gssapi.MechType.kerberos], usage="initiate", store=store or None)

    def _choose(self, challenge: bytes) -> bytes:
        """Return the choice of a security layer, with the client's principal as authorization id as in Kafka."""
        if not challenge:
            # The broker's last token of Kerberos was empty. Its offer of layers follows.
            self._state = _CHOOSING
            return b""
        offer = self._context.unwrap(challenge).message
        if len(offer) != _LAYERS_BYTES or not offer[0] & _NO_LAYER:
            raise SaslError(
                "the broker does not offer GSSAPI without a security layer, which Kafka's brokers do; check that the "
                "listener belongs to Kafka"
            )
        identity = str(self._context.initiator_name).encode()
        self._state = _CHOSEN
        return bytes(self._context.wrap(_CHOICE + identity, False).message)


def _error(error: BaseException, target: str, credentials: Credentials) -> SaslError:
    """Return the library's text of an error, and what to check. `target`: the broker's service, as in ``kafka@host``.

    The text is that of the minor code, which says what has happened. One of them says nothing of the reason: without a
    key in the keytab, the library looks for a ticket in the cache that it would make.
    """
    code = getattr(error, "min_code", 0)
    code = code - _CODES if code >= _SIGN else code
    keytab = credentials.kerberos_keytab
    why = server_text(str(error).rpartition("Minor (")[2].partition("): ")[2] or str(error), ())
    final = code in (_FINAL_WITH_TICKET if keytab is None else _FINAL_WITH_KEYTAB)
    cache, client = credentials.kerberos_ticket_cache, credentials.kerberos_principal
    ticket = f"the ticket{f' in {cache}' if cache else ''} (klist)"
    check = f"{ticket}, or get one with kinit, or set sasl_kerberos_keytab and sasl_kerberos_principal"
    if keytab is not None:
        check = f"the keytab and sasl_kerberos_principal (klist -k {keytab})"
        if code in _NO_TICKET:
            why = f"the keytab {keytab} cannot be read, or has no key of {client}"
        final = final or not os.access(keytab, os.R_OK)
    configuration = os.environ.get("KRB5_CONFIG") or "/etc/krb5.conf"
    between = f"{target} and the client {client}" if client else target
    text = (
        f"Kerberos failed for the service {between}: {why}; check {check}; "
        f"then sasl_kerberos_service_name, the name of the broker's host, the KDC, {configuration}, and the clocks"
    )
    return SaslError(text, retryable=not final)


def _load() -> Any:
    try:
        return importlib.import_module("gssapi")
    except (ImportError, OSError) as error:
        raise SaslError(
            f"sasl_mechanism GSSAPI needs the package gssapi, which cannot be loaded ({error}); where the sender is "
            "started, run: pip install 'cyproducer[kerberos]' (Debian: first apt-get install gcc python3-dev "
            "libkrb5-dev)"
        ) from None
