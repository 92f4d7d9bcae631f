"""Says whose token a JWT is, in a form that stays the same when the token is replaced."""

import json
from hashlib import blake2b
from typing import Any

from cyproducer.security.token_source import jwt_claims

__all__ = ["OF_JWT", "jwt_principal"]

#: How the principal of a JWT begins.
OF_JWT = "jwt:"
#: Claims (RFC 7519, RFC 9068, OpenID Connect) that decide what the token allows and do not change when it is replaced.
_CLAIMS = ("iss", "sub", "aud", "azp", "client_id", "scope", "scp")
_SUBJECT_CHARACTERS_MAX = 100
_DIGEST_BYTES = 16


def jwt_principal(token: str) -> str | None:
    """Return the subject of a JWT, followed by a hash of the claims that decide what it allows.

    Return None if the token is no JWT, or has no subject. The signature is not checked: only a broker can do that.
    """
    claims = jwt_claims(token)
    subject = claims.get("sub") if claims is not None else None
    if claims is None or not isinstance(subject, str) or not subject:
        return None
    found = {name: _in_order(claims[name]) for name in _CLAIMS if name in claims}
    digest = blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    shown = "".join(each if each.isprintable() else "?" for each in subject[:_SUBJECT_CHARACTERS_MAX])
    return f"{OF_JWT}{shown}:{digest}"


def _in_order(claim: Any) -> Any:
    """Return a claim in a form that does not depend on the order of its parts."""
    if isinstance(claim, str) and " " in claim:
        return sorted(claim.split())
    if isinstance(claim, list) and all(isinstance(each, str) for each in claim):
        return sorted(claim)
    return claim
