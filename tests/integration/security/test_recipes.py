"""Tests the recipes for secured clusters: each one's settings, on the corresponding listener.

The code of a recipe is executed as it is in the document. Replaced are the host, the files (in another directory, with
the certificates of the node), the user and the password, and for IAM the package that signs tokens. `ssl_cafile` is
added where the recipe has none, because no authority of the system has signed the node's certificate.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from support.secure_kafka import SecureKafka

import cyproducer
from cyproducer import KafkaProducer

Make = Callable[..., KafkaProducer]

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "cluster_recipes.md"
TITLE = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Directories of files in the recipes. The files are made elsewhere with the same names.
DIRECTORIES = ("/var/run/secrets", "/etc/kafka", "/etc/redpanda/certs")
AUTHORITY, CERTIFICATE, KEY = ("ca.crt",), ("user.crt", "client.pem"), ("user.key", "client.key")


class Expected(NamedTuple):
    """The listener of a recipe, whose principal it is, and the settings that may be replaced or added."""

    listener: str
    principal: str
    mechanism: str | None = None


ALICE, MINE = "User:alice", "User:CN=recipe"
EXPECTED = {
    "Confluent Cloud 1": Expected("SASL_SSL", ALICE, "PLAIN"),
    "Amazon MSK 1": Expected("SASL_SSL", ALICE, "SCRAM-SHA-512"),
    "Amazon MSK 2": Expected("MTLS", MINE),
    "Amazon MSK 3": Expected("SASL_SSL", "User:iam", "OAUTHBEARER"),
    "Redpanda 1": Expected("SASL_SSL", ALICE, "SCRAM-SHA-256"),
    "Strimzi 1": Expected("MTLS", MINE),
    "Strimzi 2": Expected("SASL_SSL", ALICE, "SCRAM-SHA-512"),
}


def recipes() -> dict[str, str]:
    """Return the code of each recipe by its title and number."""
    parts = TITLE.split(GUIDE.read_text())[1:]
    return {
        f"{title} {number}": code
        for title, part in zip(parts[::2], parts[1::2], strict=True)
        for number, code in enumerate(BLOCK.findall(part), 1)
    }


RECIPES = recipes()


def test_each_recipe_is_tried() -> None:
    assert RECIPES.keys() == EXPECTED.keys()


@pytest.fixture
def run_recipe(
    secure_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], dict[str, Any]]:
    """Return a function that executes a recipe and returns the settings of its KafkaProducer."""
    keys, identity = secure_kafka.keys, secure_kafka.keys.client("recipe")
    signer = ModuleType("aws_msk_iam_sasl_signer")
    token = secure_kafka.tokens.token("iam", expires_in=900)

    class MSKAuthTokenProvider:
        """Has the method of the AWS package, whose expiry is in milliseconds."""

        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            import jwt

            return token, jwt.decode(token, options={"verify_signature": False})["exp"] * 1000

    signer.__dict__["MSKAuthTokenProvider"] = MSKAuthTokenProvider
    monkeypatch.setitem(sys.modules, signer.__name__, signer)
    for name, value in {
        "API_KEY": "alice",
        "API_SECRET": secure_kafka.users["alice"],
        "KAFKA_PASSWORD": secure_kafka.users["alice"],
    }.items():
        monkeypatch.setenv(name, value)

    def make_file(place: str) -> str:
        path = tmp_path / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = dict.fromkeys(AUTHORITY, keys.ca)
        sources |= dict.fromkeys(CERTIFICATE, identity.certificate) | dict.fromkeys(KEY, identity.key)
        if path.name == "password":
            path.write_text(secure_kafka.users["alice"])
        else:
            path.write_bytes(sources[path.name].read_bytes())
        return str(path)

    def run(code: str) -> dict[str, Any]:
        given: list[dict[str, Any]] = []
        places = "|".join(map(re.escape, DIRECTORIES))
        changed = re.sub(rf'"((?:{places})/[^"]*)"', lambda found: f'"{make_file(found[1])}"', code)
        assert not re.search(r'"/', changed.replace(f'"{tmp_path}', "")), "a file of the recipe is not replaced"
        with monkeypatch.context() as patched:
            patched.setattr(cyproducer, "KafkaProducer", lambda **settings: given.append(settings))
            exec(compile(changed, "recipe", "exec"), {})
        (settings,) = given
        return settings

    return run


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe(
    secure_kafka: SecureKafka,
    make_producer: Make,
    runtime_dir: Path,
    run_recipe: Callable[[str], dict[str, Any]],
    name: str,
) -> None:
    listener, principal, mechanism = EXPECTED[name]
    settings = run_recipe(RECIPES[name])
    assert settings.get("sasl_mechanism") == mechanism
    assert settings["security_protocol"] == ("SSL" if listener == "MTLS" else listener)
    settings["bootstrap_servers"] = secure_kafka.bootstrap(listener)
    settings.setdefault("ssl_cafile", str(secure_kafka.keys.ca))
    if "sasl_plain_username" in settings:
        settings["sasl_plain_username"] = "alice"
    topic = secure_kafka.topic_for(principal)
    producer = make_producer(**settings)
    assert producer.send(topic, name.encode()).result(30).offset == 0
    assert secure_kafka.read(topic, 1).value == [name.encode()]
