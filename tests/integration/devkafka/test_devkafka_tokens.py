"""Tests the token endpoint that other tests use, with an HTTP client and a JWT library that do not know it."""

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import jwt
import pytest
from devkafka.keys import Keys
from support.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint(tmp_path):
    with TokenEndpoint(tmp_path, expires_in=120) as endpoint:
        yield endpoint


def ask(endpoint, secret=None, context=None, **form):
    """Return status and JSON of the answer to a request for a token."""
    form = {"grant_type": "client_credentials", **form}
    who = f"{endpoint.client_id}:{endpoint.client_secret if secret is None else secret}"
    headers = {"Authorization": "Basic " + base64.b64encode(who.encode()).decode()}
    request = urllib.request.Request(endpoint.url, urllib.parse.urlencode(form).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def verified(endpoint, token, keys=None):
    """Return the claims of a token, verified with the served keys."""
    keys = jwt.PyJWKClient(endpoint.jwks_url).get_signing_key_from_jwt(token) if keys is None else keys
    return jwt.decode(token, keys, algorithms=["RS256"], audience=endpoint.audience, issuer=endpoint.issuer)


def test_token_is_signed_and_has_the_claims(endpoint):
    before = int(time.time())
    status, body = ask(endpoint, scope="produce")
    assert (status, body["token_type"], body["expires_in"]) == (200, "Bearer", 120)
    claims = verified(endpoint, body["access_token"])
    assert (claims["sub"], claims["scope"]) == (endpoint.client_id, "produce")
    assert before <= claims["iat"] <= time.time()
    assert claims["exp"] - claims["iat"] == 120
    assert json.loads(endpoint.jwks_file.read_text()) == endpoint.jwks()
    assert verified(endpoint, endpoint.token("another"))["sub"] == "another"
    assert [(r.form["scope"], r.client_id, r.authorized, r.status) for r in endpoint.requests] == [
        ("produce", endpoint.client_id, True, 200)
    ]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"expires_in": -5}, jwt.ExpiredSignatureError),
        ({"foreign": True}, jwt.InvalidSignatureError),
        ({"audience": "others"}, jwt.InvalidAudienceError),
        ({"issuer": "others"}, jwt.InvalidIssuerError),
    ],
)
def test_wrong_tokens_are_wrong(endpoint, wrong, error):
    with pytest.raises(error):
        verified(endpoint, endpoint.token(**wrong))


def test_wrong_requests_are_refused(endpoint):
    assert ask(endpoint, secret="wrong") == (401, {"error": "invalid_client", "error_description": "refused"})
    assert ask(endpoint, grant_type="password")[0] == 400
    old = endpoint.client_secret
    endpoint.change_secret()
    assert ask(endpoint, secret=old)[0] == 401
    assert ask(endpoint)[0] == 200
    assert [request.status for request in endpoint.requests] == [401, 400, 401, 200]
    assert endpoint.count == 4
    endpoint.forget_requests()
    assert endpoint.count == 0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(endpoint.url, b"grant_type=client_credentials", timeout=20)
    assert endpoint.requests[0].client_id == ""
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(endpoint.url, timeout=20)


def test_failure_and_delay_are_as_set(endpoint):
    endpoint.failing = 503
    assert ask(endpoint) == (503, {"error": "temporarily_unavailable", "error_description": "refused"})
    endpoint.failing, endpoint.delay = None, 0.3
    started = time.monotonic()
    assert ask(endpoint)[0] == 200
    assert time.monotonic() - started >= 0.3


def test_end_does_not_wait_for_the_delay(tmp_path):
    with TokenEndpoint(tmp_path) as endpoint:
        endpoint.delay = 60
        asking = threading.Thread(target=ask, args=(endpoint,))
        asking.start()
        while endpoint.count == 0:
            time.sleep(0.01)
    asking.join(20)
    assert not asking.is_alive()


def test_https(tmp_path):
    keys = Keys(tmp_path / "keys")
    with TokenEndpoint(tmp_path, identity=keys.server("endpoint")) as endpoint:
        assert endpoint.url.startswith("https://")
        assert ask(endpoint, context=ssl.create_default_context(cafile=str(keys.ca)))[0] == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(endpoint, context=ssl.create_default_context(cafile=str(keys.other_ca)))
