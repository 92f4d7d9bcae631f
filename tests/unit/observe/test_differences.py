"""Tests in what identities of senders differ, as text for readers."""

from typing import Any

from cyproducer.observe.differences import Difference, bootstrap_servers, differences


def identity(cgroup: str = "/a", **settings: Any) -> dict[str, Any]:
    return {"cgroup": cgroup, "layout": 1, "settings": {"bootstrap_servers": ["b:9092"], **settings}}


def test_settings_and_other_parts_are_named_with_each_value() -> None:
    found = differences([identity(client_rack="x"), identity("/b", client_rack="y", sender_group="g")])
    assert found == [
        Difference("cgroup", False, ["'/a'", "'/b'"]),
        Difference("client_rack", True, ["'x'", "'y'"]),
        Difference("sender_group", True, ["None", "'g'"]),
    ]
    assert differences([identity(), identity()]) == []


def test_a_long_value_is_cut_and_a_secret_is_hidden() -> None:
    long, secret = differences([identity(client_rack="x" * 200, my_password="a"), identity(my_password="b")])
    assert long.values == ["'" + "x" * 99 + "...", "None"]
    assert (secret.name, secret.values) == ("my_password", ["<hidden>", "<hidden>"])


def test_a_description_may_have_any_form() -> None:
    assert bootstrap_servers({"identity": identity()}) == ["b:9092"]
    for broken in ({}, {"identity": 1}, {"identity": {"settings": 1}}, {"identity": {"settings": {}}}):
        assert bootstrap_servers(broken) == []
