"""Finds the setting of each given name, in all spellings, and checks each value on its own."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer.config.hints import KAFKA, asks_for_nothing, hint_for, nearest
from cyproducer.config.kinds import Wrong
from cyproducer.config.secrets import ConcealedText, mentions_secret, secret_texts
from cyproducer.config.table import BY_KAFKA_NAME, BY_NAME, OTHER_SPELLINGS, SECURITY_BY_NAME, Setting
from cyproducer.errors import KafkaConfigurationError

__all__ = ["parse_each"]

_log = logging.getLogger("cyproducer")


def parse_each(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the canonical values by the settings' names, and how the names were written.

    `given` is the result of conceal(). Raise KafkaConfigurationError with the setting, its value unless that may be a
    secret, and what is allowed.
    """
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    secrets = secret_texts(given)
    for spelling, value in given.items():
        is_known = spelling in BY_NAME or spelling in BY_KAFKA_NAME
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
    setting = BY_KAFKA_NAME.get(name)
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
    hint = hint_for(shown)
    if hint is not None and hint.advice:
        what = "not supported; leave it out" if hint.client == KAFKA else "a setting of another Kafka client"
        raise KafkaConfigurationError(f"{shown!r} is {what}: {hint.advice}")
    others = [spelling.replace("_", ".") for spelling in OTHER_SPELLINGS]
    near = nearest(shown, [*BY_KAFKA_NAME, *others], [*BY_NAME, *OTHER_SPELLINGS])
    advice = f"; did you mean {near!r}?" if near else "; the names are those of Kafka's producer settings"
    raise KafkaConfigurationError(f"{shown!r} is not a known setting{advice}")


def _show(setting: Setting, value: Any, secrets: Iterable[str]) -> str:
    """Return a value as an error message may show it: without secrets and credentials of a URL, and not too long."""
    if not setting.shown or isinstance(value, ConcealedText):
        return "<hidden>"
    # repr() and str() of other objects and of containers may contain a secret.
    plain = value is None or type(value) in (bool, int, float, str)
    return _guard(repr(value), secrets) if plain else f"<{type(value).__name__}>"
