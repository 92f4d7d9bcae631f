"""Tests the program that makes the table of messages: what it writes of a definition, and what it reports."""

import kafka_messages as tool
import pytest

PLAIN = {"name": "TopicId", "type": "uuid", "versions": "1+"}


def definition(*fields, **more):
    return {"apiKey": 3, "validVersions": "0-4", "flexibleVersions": "2+", "fields": fields, **more}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "topic_id uuid 1+"),
        ({"name": "V3AndBelowTopics"}, "topics uuid 1+"),
        ({"name": "Enable2Pc"}, "enable2_pc uuid 1+"),
        ({"nullableVersions": "2+", "default": "null"}, "topic_id uuid 1+ nullable 2+ default null"),
        ({"versions": "1-3", "nullableVersions": "2-3"}, "topic_id uuid 1-3 nullable 2+"),
        ({"tag": 0, "taggedVersions": "1+", "default": ""}, 'topic_id uuid 1+ tag 0 default ""'),
        ({"default": False, "ignorable": True, "about": "text"}, "topic_id uuid 1+ default false ignorable"),
        ({"default": "-1", "ignorable": False}, "topic_id uuid 1+ default -1"),
    ],
)
def test_a_field_is_a_line(more, line):
    assert tool.block("request", "A", definition({**PLAIN, **more})) == f"request 3 A 0-4 flexible 2+\n  {line}"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"flexibleVersions": "none"}, "unknown: flexibleVersions"),
        ({"nullableVersions": "1-3"}, "null in its last version"),
        ({"tag": 0, "taggedVersions": "2+"}, "a tag in some versions only"),
    ],
)
def test_what_a_line_cannot_express_is_an_error(more, reason):
    with pytest.raises(ValueError, match=reason):
        tool.block("request", "A", definition({**PLAIN, **more}))


def test_two_fields_of_one_name_are_an_error():
    with pytest.raises(ValueError, match="one name"):
        tool.block("request", "A", definition(PLAIN, {**PLAIN, "name": "V3AndBelowTopicId"}))


def test_the_fields_of_a_struct_follow_it():
    shared = {"name": "Both", "versions": "0+", "fields": [PLAIN]}
    own = {"name": "Own", "type": "Inner", "versions": "0+", "fields": [{**PLAIN, "type": "[]int8"}]}
    lines = tool.block(
        "response",
        "A",
        definition({"name": "Many", "type": "[]Both", "versions": "0-1"}, own, commonStructs=[shared]),
    ).splitlines()
    assert lines[1:] == ["  many []struct 0-1", "    topic_id uuid 1+", "  own struct 0+", "    topic_id []int8 1+"]


def test_changes_are_reported():
    def text(*fields):
        return tool.module({("request", "A"): definition(*fields)}, "hash", "9.9")

    old = text({"name": "Own", "type": "Inner", "versions": "0+", "fields": [PLAIN, {**PLAIN, "name": "Gone"}]})
    new = text({"name": "Own", "type": "Inner", "versions": "0+", "fields": [{**PLAIN, "type": "int8"}]}, PLAIN)
    assert tool.changes(old, old) == []
    assert tool.changes(old, new) == [
        "removed: request A: own.gone (uuid 1+)",
        "new: request A: topic_id (uuid 1+)",
        "changed: request A: own.topic_id: uuid 1+ -> int8 1+",
    ]


@pytest.mark.parametrize(
    ("valid", "unstable", "wrong", "unused"),
    [("3-13", False, 0, 0), ("3-14", True, 0, 0), ("3-14", False, 0, 1), ("4-14", False, 1, 0), ("3-13", True, 1, 0)],
)
def test_versions_are_compared_with_those_in_use(monkeypatch, valid, unstable, wrong, unused):
    monkeypatch.setattr(tool, "APIS", [tool.APIS[0]])
    assert tool.APIS[0][:3] == ("Produce", 3, 13)
    found = {("request", "Produce"): definition(validVersions=valid, latestVersionUnstable=unstable)}
    assert [len(lines) for lines in tool.rows_to_change(found)] == [wrong, unused]
