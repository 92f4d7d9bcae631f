"""Tests that tokens are read from a file, again when it changed, and that errors name the file and no token."""

import os

import pytest
from support.unsigned_jwt import jwt

from cyproducer.security.token_file import TokenFile
from cyproducer.security.token_source import TOKEN_BYTES_MAX, TokenError


@pytest.mark.parametrize("prefix", ["", "file://", "file://localhost"])
def test_a_token_is_read_from_a_path_or_url(tmp_path, prefix):
    path = tmp_path / "token"
    value = jwt(exp=500, iat=100)
    path.write_text(f"\n {value}\r\n")
    assert TokenFile(f"{prefix}{path}", {"a": "b"}).fetch() == (value, 500, {"a": "b"}, 100)


def test_a_url_can_have_escapes(tmp_path):
    (tmp_path / "a b").write_text(jwt(exp=1))
    assert TokenFile(f"file://{tmp_path}/a%20b").fetch().expires_at == 1


@pytest.mark.parametrize("url", ["file://host/token", "file:token", "FILE://host/token"])
def test_another_url_is_refused(url):
    with pytest.raises(TokenError, match="set sasl_oauthbearer_token_endpoint_url to file:// and an absolute path"):
        TokenFile(url)


def test_a_change_is_noticed(tmp_path):
    path = tmp_path / "token"
    source = TokenFile(path)
    with pytest.raises(TokenError, match="cannot be read: No such file or directory"):
        source.fetch()
    assert not source.changed()
    path.write_text(jwt(exp=1))
    assert source.changed()
    assert source.fetch().expires_at == 1
    assert not source.changed()
    other = tmp_path / "other"
    other.write_text(jwt(exp=2))
    other.replace(path)
    assert source.changed()
    assert source.fetch().expires_at == 2
    path.unlink()
    assert source.changed()


def test_what_is_no_token_is_read_again_only_after_a_change(tmp_path):
    path = tmp_path / "token"
    path.write_text("SECRET")
    source = TokenFile(path)
    with pytest.raises(TokenError):
        source.fetch()
    assert not source.changed()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "does not contain a JWT"),
        (b"SECRET", "does not contain a JWT"),
        (jwt(iat=1).encode(), "contains a JWT without the claim exp"),
        (b"\xffSECRET", "contains a character that is not in ASCII"),
        (b"a" * (TOKEN_BYTES_MAX + 1), f"has more than {TOKEN_BYTES_MAX} bytes"),
    ],
)
def test_other_contents_are_refused(tmp_path, content, text):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TokenError, match=text) as caught:
        TokenFile(path).fetch()
    assert str(path) in str(caught.value) and "SECRET" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_directory_and_a_pipe_are_refused(tmp_path):
    with pytest.raises(TokenError, match="cannot be read: Is a directory"):
        TokenFile(tmp_path).fetch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TokenError, match="is not a regular file"):
        TokenFile(tmp_path / "pipe").fetch()


def test_repr_shows_the_path(tmp_path):
    source = TokenFile(tmp_path / "t")
    source.cancel()
    assert repr(source) == f"TokenFile('{tmp_path}/t')"
