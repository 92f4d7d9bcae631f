"""Tests the settings of a proxy: their values, which of them need each other, and that the password stays hidden."""

import importlib.util
from typing import Any

import pytest

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError

GIVEN = {"proxy_url": "socks5://proxy:1080", "proxy_username": "u", "proxy_password": "hidden one"}


def parsed(**given: Any) -> Settings:
    return Settings.parse(bootstrap_servers="kafka:9092", **given)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("socks5://proxy:1080", "socks5://proxy:1080"),
        ("socks5h://Proxy:1080/", "socks5://proxy:1080"),
        ("SOCKS5://[::1]:1080", "socks5://[::1]:1080"),
        ("http://10.0.0.1:3128", "http://10.0.0.1:3128"),
        (None, None),
        ("", None),
    ],
)
def test_the_url(given: str | None, url: str | None) -> None:
    assert parsed(proxy_url=given).proxy_url == url
    assert parsed(socks5_proxy=given).proxy_url == url, "kafka-python's former name"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("proxy:1080", "the scheme is none of socks5, socks5h and http"),
        ("https://proxy:3128", "the scheme is none of socks5, socks5h and http"),
        ("socks4://proxy:1080", "the scheme is none of socks5, socks5h and http"),
        ("socks5://proxy", "not host:port"),
        ("socks5://proxy:1080/path", "not host:port"),
        ("socks5://:1080", "not host:port"),
        ("socks5://proxy:99999", "from 1 to 65535"),
        (7, "proxy_url"),
    ],
)
def test_an_invalid_url(given: Any, said: str) -> None:
    with pytest.raises((KafkaConfigurationError, TypeError, ValueError), match=said):
        parsed(proxy_url=given)


def test_credentials_in_the_url_are_refused_and_not_shown() -> None:
    with pytest.raises(KafkaConfigurationError, match="give them as proxy_username and proxy_password") as caught:
        parsed(proxy_url="socks5://u:hidden-one@proxy:1080")
    assert "hidden-one" not in str(caught.value)


@pytest.mark.parametrize("url", ["socks5://u:hidden-one%40proxy:1080", "http://proxy:1080:u:hidden-one"])
def test_an_invalid_url_may_have_credentials_and_is_not_shown(url: str) -> None:
    with pytest.raises(KafkaConfigurationError) as caught:
        parsed(proxy_url=url)
    assert "hidden-one" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"proxy_url": "http://proxy:1", "proxy_username": "u:v", "proxy_password": "p"}, "has a colon"),
        ({"proxy_url": "socks5://p:1", "proxy_username": "u" * 256, "proxy_password": "p"}, "more than 255 bytes"),
        ({"proxy_username": "u", "proxy_password": "p"}, "proxy_url is missing"),
        ({"proxy_url": "socks5://proxy:1080", "proxy_username": "u"}, "proxy_username needs proxy_password"),
        ({"proxy_url": "socks5://proxy:1080", "proxy_password": "p"}, "proxy_password needs proxy_username"),
    ],
)
def test_settings_that_need_each_other(given: dict[str, str], said: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=said):
        parsed(**given)


def test_the_password_is_a_secret_and_the_rest_belongs_to_the_identity() -> None:
    settings = parsed(**GIVEN)
    assert "hidden one" not in repr(settings)
    public = settings.sender_settings()
    assert (public["proxy_url"], public["proxy_username"]) == ("socks5://proxy:1080", "u")
    assert "proxy_password" not in public
    assert settings.secrets() == {"proxy_password": "hidden one"}


@pytest.mark.parametrize(("scheme", "library"), [("socks5", "socksio"), ("http", "h11")])
def test_a_library_that_is_not_installed(scheme: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == library else find(name, *more))
    with pytest.raises(KafkaConfigurationError, match=rf"needs the package {library}.*pip install"):
        parsed(proxy_url=f"{scheme}://proxy:1080")
    assert Settings.parse(sender="/s", proxy_url=f"{scheme}://proxy:1080").proxy_url, "only the sender needs it"
