"""Finds the setting of each given name, in all spellings, and checks each value on its own."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer.config.concealed import ConcealedText, secret_texts
from cyproducer.config.kafka_settings import asks_for_nothing, other_clients_setting, refused_setting
from cyproducer.config.kinds import Wrong
from cyproducer.config.other_names import advice, nearest
from cyproducer.config.secrets import mentions_secret
from cyproducer.config.security_table import OTHER_SPELLINGS, SECURITY_BY_NAME
from cyproducer.config.setting import Setting
from cyproducer.config.table import SETTINGS
from cyproducer.errors import KafkaConfigurationError

__all__ = ["BY_NAME", "parse_each"]

_log = logging.getLogger("cyproducer")

BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_KAFKA_NAME = {setting.kafka_name: setting for setting in SETTINGS}


def parse_each(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the canonical values by the settings' names, and how the names were written.

    `given` is the result of conceal(). Raise KafkaConfigurationError with the setting, its value unless that may be a
    secret, and what is allowed.
    """
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    secrets = secret_texts(given)
    for spelling, value in given.items():
        is_known = spelling in BY_NAME or spelling in _BY_KAFKA_NAME
        if not is_known and asks_for_nothing(spelling, str(value) if isinstance(value, str) else value):
            continue
        setting, dotted = _find(spelling)
        name = setting.name
        # Copies of all settings of another client have None for what is not used.
        if value is None and name in SECURITY_BY_NAME:
            continue
        if name in spelled:
            raise KafkaConfigurationError(f"{name} is given twice, as {spelled[name]!r} and as {spelling!r}")
        spelled[name] = spelling
        parsed = _parsed(setting, spelling, value, dotted, secrets)
        if isinstance(parsed, str):
            parsed = _concealed(setting, parsed, secrets)
        if name == "api_version" and value is not None:
            _log.warning("api_version is ignored: the sender negotiates versions with each broker; leave it out")
        elif value is not None and (parsed is not None or name not in SECURITY_BY_NAME):
            values[name] = parsed
    return values, spelled


def _guard(shown: str, secrets: Iterable[str]) -> str:
    """Return a text as an error message may show it: hidden if it may be a secret, and not too long."""
    if mentions_secret(shown) or "@" in shown or any(secret in shown for secret in secrets):
        return "<hidden>"
    return shown if len(shown) <= 100 else shown[:100] + "..."


def _parsed(setting: Setting, spelling: str, value: Any, dotted: bool, secrets: list[ConcealedText]) -> Any:
    try:
        return setting.kind.parse(value, dotted)
    except Wrong as wrong:
        reason = f"{wrong.reason}; " if wrong.reason else ""
        shown = _guard(wrong.shown, secrets) if wrong.shown else _show(setting, value, secrets)
        message = f"{spelling}={shown}: {reason}expected {setting.kind.allowed}"
    raise KafkaConfigurationError(message)


def _concealed(setting: Setting, parsed: str, secrets: Iterable[str]) -> str:
    """Return a canonical text. It is plain unless it is or has a secret: the given text may only have looked so."""
    has_secret = setting.shown and any(secret in parsed for secret in secrets)
    has_query = parsed.startswith("http") and "?" in parsed
    return ConcealedText(parsed) if setting.secret or has_secret or has_query else str(parsed)


def _find(name: str) -> tuple[Setting, bool]:
    """Return the row of a name, and whether the name has Kafka's spelling, under which text is a number too."""
    setting = _BY_KAFKA_NAME.get(name)
    if setting is not None:
        return setting, True
    if name in BY_NAME:
        return BY_NAME[name], False
    plain = name.replace(".", "_")
    setting = SECURITY_BY_NAME.get(OTHER_SPELLINGS.get(plain, plain))
    if setting is not None:
        return setting, "." in name
    # Cut the name after its valid characters: a value may follow after "=".
    stem = re.match(r"[A-Za-z0-9_.-]*", name)
    shown = stem[0][:80] if stem else ""
    row = refused_setting(shown)
    if row is not None:
        raise KafkaConfigurationError(f"{shown!r} is not supported; leave it out: {row.note}")
    other = other_clients_setting(shown)
    told = advice(shown) if other is None else other.note
    if told:
        raise KafkaConfigurationError(f"{shown!r} is a setting of another Kafka client: {told}")
    others = [spelling.replace("_", ".") for spelling in OTHER_SPELLINGS]
    near = nearest(shown, [*_BY_KAFKA_NAME, *others], [*BY_NAME, *OTHER_SPELLINGS])
    hint = f"; did you mean {near!r}?" if near else "; the names are those of Kafka's producer settings"
    raise KafkaConfigurationError(f"{shown!r} is not a known setting{hint}")


def _show(setting: Setting, value: Any, secrets: Iterable[str]) -> str:
    """Return a value as an error message may show it: without secrets and credentials of a URL, and not too long."""
    if not setting.shown or isinstance(value, ConcealedText):
        return "<hidden>"
    # repr() and str() of other objects and of containers may contain a secret.
    plain = value is None or type(value) in (bool, int, float, str)
    return _guard(repr(value), secrets) if plain else f"<{type(value).__name__}>"
