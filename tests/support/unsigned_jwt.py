"""Makes JWTs whose signature is a text that is easy to find."""

import base64
import json


def jwt(**claims: object) -> str:
    """Return a JWT with these claims and a signature of the text "SECRET"."""
    sections = [{"alg": "none"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in sections]
    return ".".join([*encoded, "SECRET"])
