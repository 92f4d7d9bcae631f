"""Tests requests to a token endpoint: what is sent, every kind of answer, and that no text shows a secret."""

import base64
import http.server
import socket
import ssl
import threading
import traceback
from typing import Any

import pytest
import trustme
from support.tcp_server import full_port
from support.unsigned_jwt import jwt
from token_rig import Answer, FakeClock, Server

from cyproducer.security.token_endpoint import TokenEndpoint
from cyproducer.security.token_http import HttpAnswer
from cyproducer.security.token_source import TOKEN_BYTES_MAX, TokenError, jwt_times

SECRET = "SECRET~*/ ü"
GOOD = Answer.json(access_token="opaque", expires_in=300)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def endpoint(url: str, **options: Any) -> TokenEndpoint:
    return TokenEndpoint(url, "client", SECRET, **options)


def failure(url: str, **options: Any) -> TokenError:
    """Return the error of one request. Its whole traceback shows no secret."""
    with pytest.raises(TokenError) as caught:
        endpoint(url, **options).fetch()
    shown = "".join(traceback.format_exception(caught.value))
    assert "SECRET" not in shown and base64.b64encode(f"client:{SECRET}".encode()).decode() not in shown
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def test_the_request_is_that_of_kafka():
    with Server(GOOD) as server:
        endpoint(server.url, scope=" a b~*ü ").fetch()
    (request,) = server.requests
    assert request.path == "/token"
    assert request.body == b"grant_type=client_credentials&scope=a+b%7E*%C3%BC"
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["authorization"] == "Basic " + base64.b64encode(f"client:{SECRET}".encode()).decode()
    assert headers["accept"] == "application/json"
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert headers["cache-control"] == "no-cache"


def test_id_and_secret_are_url_encoded_on_request():
    with Server(GOOD) as server:
        TokenEndpoint(server.url, " cli:ent ", SECRET, "  ", urlencode=True).fetch()
    (request,) = server.requests
    encoded = base64.b64encode(b"cli%3Aent:SECRET%7E*%2F+%C3%BC").decode()
    assert request.headers["Authorization"] == f"Basic {encoded}"
    assert request.body == b"grant_type=client_credentials"


def test_a_jwt_has_its_own_expiry():
    value = jwt(exp=1_000_600, iat=1_000_000)
    with Server(Answer.json(201, access_token=f" {value} ", expires_in=5)) as server:
        token = endpoint(server.url, extensions={"a": "b"}).fetch()
    assert token == (value, 1_000_600, {"a": "b"}, 1_000_000)
    assert "SECRET" not in repr(token) and "SECRET" not in f"{token}"


@pytest.mark.parametrize("lifetime", [300, 300.0, "300"])
def test_another_token_expires_after_the_given_time(lifetime):
    with Server(Answer.json(access_token="opaque", expires_in=lifetime)) as server:
        token = endpoint(server.url, clock=FakeClock(1000.0)).fetch()
    assert token == ("opaque", 1300.0, {}, None)


@pytest.mark.parametrize("lifetime", [None, True, -1, "soon", "nan", [1], 10**400])
def test_a_token_without_a_lifetime_is_refused(lifetime):
    with Server(Answer.json(access_token="SECRET", expires_in=lifetime)) as server:
        error = failure(server.url)
    assert "has sent a token without a lifetime; let it send expires_in, or a JWT with the claim exp" in str(error)
    assert not error.retryable


def test_an_id_token_is_taken_if_there_is_no_access_token():
    """As Kafka's JwtResponseParser.java does."""
    with Server(Answer.json(access_token=" ", id_token="x", expires_in=1)) as server:
        assert endpoint(server.url).fetch().value == "x"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<html>SECRET</html>", "has not sent a JSON object"),
        (b"", "has not sent a JSON object"),
        (b"\xff\xfe", "has not sent a JSON object"),
        (b"[" * 100_000, "has not sent a JSON object"),
        (b'["SECRET"]', "has not sent a JSON object"),
        (b'{"access_token": 5, "x": "SECRET"}', "has sent no access_token"),
        (b'{"access_token": ""}', "has sent no access_token"),
    ],
)
def test_an_answer_without_a_token_is_refused(body, text):
    with Server(Answer(200, body)) as server:
        error = failure(server.url)
    assert str(error) == f"the token endpoint {server.url} {text}; check that it is a token endpoint"
    assert not error.retryable


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (404, False), (429, True), (500, True), (501, False), (503, True)],
)
def test_a_refusal_names_status_reason_and_advice(status, retryable):
    with Server(Answer.json(status, error="invalid_client", error_description=f"no {SECRET}\n")) as server:
        error = failure(f"{server.url}?key=SECRET")
    assert f"{server.url} has refused the request with HTTP status {status} (invalid_client - no <hidden>?); " in str(
        error
    )
    advice = "client_secret and sasl_oauthbearer_scope" if status < 402 else "check the URL and the provider's log"
    assert advice in str(error)
    assert error.retryable == retryable


def test_a_refusal_does_not_repeat_the_header_or_a_page():
    header = base64.b64encode(f"client:{SECRET}".encode()).decode()
    with Server(
        Answer.json(401, errorCode="E1", errorSummary=f"Basic {header}"), Answer(500, b"<html>x</html>")
    ) as server:
        assert "(E1 - Basic <hidden>)" in str(failure(server.url))
        assert "(no reason given)" in str(failure(server.url))


def test_a_redirection_is_not_followed():
    with Server(GOOD) as other, Server(Answer(302, b"", (("Location", other.url),))) as server:
        error = failure(server.url)
    assert "HTTP status 302" in str(error) and "set sasl_oauthbearer_token_endpoint_url to the final URL" in str(error)
    assert other.requests == []


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(b" " * 65536)


def cut_short(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"access_token": "SECRET", "expires_in": 300}')


@pytest.mark.parametrize(
    ("write", "text", "retryable"),
    [(endless, f"has sent more than {TOKEN_BYTES_MAX} bytes", False), (cut_short, "cannot be reached", True)],
)
def test_an_answer_without_an_end_or_of_another_length_is_refused(write, text, retryable):
    with Server(Answer(write=write)) as server:
        error = failure(server.url)
    assert text in str(error) and error.retryable == retryable


def test_a_silent_endpoint_is_given_up():
    server = Server(GOOD)
    server.answers = [Answer(write=lambda _: server.ending.wait(30) and None)]
    with server:
        error = failure(server.url, read_timeout_s=0.2)
    assert "does not answer within 60 s (connecting) and 0.2 s (answer)" in str(error) and error.retryable


def test_an_endpoint_that_takes_no_connection_is_given_up():
    with full_port() as port:
        url = f"http://127.0.0.1:{port}/token"
        error = failure(url, connect_timeout_s=0.2, read_timeout_s=600)
    assert "does not answer within 0.2 s (connecting) and 600 s (answer)" in str(error) and error.retryable


def test_an_endpoint_that_sends_slowly_is_given_up():
    server = Server(GOOD)

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.ending.wait(0.05):
            handler.wfile.write(b" ")

    server.answers = [Answer(write=write)]
    with server:
        assert "does not answer within" in str(failure(server.url, read_timeout_s=0.3))


def test_a_closed_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = failure(f"http://127.0.0.1:{port}/token?key=SECRET")
    assert f"http://127.0.0.1:{port}/token cannot be reached: Connection refused; check the URL" in str(error)
    assert error.retryable


def test_another_protocol_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH-2.0\r\n"), daemon=True).start()
        assert "cannot be reached" in str(failure(f"http://127.0.0.1:{other.getsockname()[1]}/", read_timeout_s=5))


def test_cancel_stops_a_running_request_and_later_ones():
    server = Server(GOOD)
    arrived = threading.Event()

    def write(_: http.server.BaseHTTPRequestHandler) -> None:
        arrived.set()
        server.ending.wait(30)

    server.answers = [Answer(write=write)]
    with server:
        source = endpoint(server.url)
        failures: list[Exception] = []

        def fetch() -> None:
            try:
                source.fetch()
            except TokenError as error:
                failures.append(error)

        thread = threading.Thread(target=fetch)
        thread.start()
        assert arrived.wait(10)
        source.cancel()
        thread.join(10)
        assert not thread.is_alive() and len(failures) == 1
        with pytest.raises(TokenError, match="cannot be reached"):
            source.fetch()


@pytest.mark.parametrize(
    "url",
    ["ftp://idp.example/t", "file:///t", "https://", "idp.example", "https://[::1", "https://h:99999/", "https://h:0/",
     "https://h/a b", "https://h/\n", ""],
)  # fmt: skip
def test_a_wrong_url_is_refused(url):
    with pytest.raises(TokenError, match=r"set sasl_oauthbearer_token_endpoint_url to http\(s\)://host/path"):
        endpoint(url)


def test_a_url_with_a_password_is_refused_and_not_shown():
    with pytest.raises(TokenError, match="contains a user; remove it") as caught:
        endpoint("https://user:SECRET@idp.example/token")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(("client_id", "secret"), [("", "x"), ("x", " ")])
def test_an_empty_id_or_secret_is_refused(client_id, secret):
    with pytest.raises(TokenError, match="needs a client id and a secret"):
        TokenEndpoint("https://idp.example/token", client_id, secret)


@pytest.mark.parametrize(
    ("url", "warns"),
    [("http://idp.example/t?k=v", True), ("http://10.0.0.1/", True), ("https://idp.example/", False),
     ("http://localhost:80/", False), ("http://127.1.2.3/", False), ("http://[::1]:8080/", False)],
)  # fmt: skip
def test_http_to_another_host_is_allowed_with_a_warning(url, warns):
    warning = endpoint(url).warning
    assert bool(warning) == warns
    assert "k=v" not in warning and ("without encryption" in warning) == warns


def test_nothing_shows_secrets():
    source = endpoint("https://idp.example/token?key=SECRET")
    assert repr(source) == "TokenEndpoint('https://idp.example/token')"
    assert "SECRET" not in repr(HttpAnswer(200, b"SECRET"))


@pytest.fixture(scope="module")
def authority() -> Any:
    return trustme.CA()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_certificate_is_checked_with_the_given_file(authority, tmp_path, host):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    cafile = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(cafile))
    server = Server(GOOD)
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True, do_handshake_on_connect=False)
    with server:
        url = f"https://{host}:{server.server.server_port}/token"
        if host == "localhost":
            assert endpoint(url, cafile=str(cafile)).fetch().value == "opaque"
            assert endpoint(url, ssl_context=ssl.create_default_context(cafile=str(cafile))).fetch().value == "opaque"
        else:
            assert "certificate that is refused: IP address mismatch" in str(failure(url, cafile=str(cafile)))
        untrusted = failure(url)
        assert "has a certificate that is refused: unable to get local issuer" in str(untrusted)
        assert "set https_ca_location to a file with its authority" in str(untrusted)
        assert not untrusted.retryable


def test_a_missing_file_of_authorities_is_named(tmp_path):
    error = failure("https://127.0.0.1:1/", cafile=str(tmp_path / "none.pem"))
    assert "none.pem with the authorities" in str(error) and "No such file" in str(error)
    (tmp_path / "bad.pem").write_text("no certificate")
    assert "set https_ca_location to a file in PEM" in str(
        failure("https://127.0.0.1:1/", cafile=str(tmp_path / "bad.pem"))
    )


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    with Server(GOOD) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server.server_port}")
        assert endpoint("http://idp.invalid/token").fetch().value == "opaque"
    assert proxy.requests[0].path == "http://idp.invalid/token"


@pytest.mark.parametrize(
    ("token", "times"),
    [
        (jwt(exp=5, iat=1.5), (5, 1.5)),
        (jwt(exp=True, iat="1"), (None, None)),
        (jwt(exp=-1, iat=10**400), (None, None)),
        (jwt(exp=float("nan"), iat=float("inf")), (None, None)),
        (jwt(), (None, None)),
        ("a.b", None),
        ("a.W10.c", None),  # [] is no object
        ("a.%%%.c", None),
        ("a.YQ.c", None),
        ("a.ü.c", None),
        ("", None),
    ],
)
def test_times_of_a_jwt(token, times):
    assert jwt_times(token) == times


def test_a_proxy_that_repeats_its_password(monkeypatch):
    """It refuses the connection, and the text of the error is its own."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_error(407, f"no user {self.headers['Proxy-Authorization']} PROXY/PASSWORD")

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            monkeypatch.setenv("https_proxy", f"http://user:PROXY%2FPASSWORD@127.0.0.1:{server.server_port}")
            assert "no user Basic <hidden> <hidden>; check" in str(failure("https://idp.example.com/token"))
        finally:
            server.shutdown()
