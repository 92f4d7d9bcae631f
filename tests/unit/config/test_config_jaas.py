"""Tests the parser of JAAS configurations. The values are those of Kafka's own parser, unless a comment says more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.config.jaas import JaasError, Module, parse_jaas, values_in


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ('a.B required user="x";', "a.B", {"user": "x"}),
        ("a.B$C REQUISITE\n\tuser = x-1.2\r\n;", "a.B$C", {"user": "x-1.2"}),
        ("a.B Sufficient;", "a.B", {}),
        ('a.B optional a="" b=\'"\' ;', "a.B", {"a": "", "b": '"'}),
        ('a.B required a="1\\"2" b="\\\\" c="\\n\\t\\a\\q";', "a.B", {"a": '1"2', "b": "\\", "c": "\n\t\aq"}),
        ('a.B required a="\\\\101" b="/* // ";', "a.B", {"a": "\\101", "b": "/* // "}),
        ("a.B required a=x a=y;", "a.B", {"a": "y"}),
        ('a.B required a="ü€\xa0" ü=_$;', "a.B", {"a": "ü€\xa0", "ü": "_$"}),
        # Kafka refuses these values without quotes.
        (
            "a.B required a=1234 b=hunter!2 c=alice@example.com;",
            "a.B",
            {"a": "1234", "b": "hunter!2", "c": "alice@example.com"},
        ),
        ("a.B required a=/etc/krb5.keytab;", "a.B", {"a": "/etc/krb5.keytab"}),
        ("a.B required a-b_c=x;", "a.B", {"a-b_c": "x"}),
        ('a.B required a="x"b=c;', "a.B", {"a": "x", "b": "c"}),
    ],
)
def test_texts(text, name, options):
    assert parse_jaas(text) == [Module(name, options)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it does not begin with the class"),
        ("// a.B required;", "it does not begin with the class"),
        ("a.B", "the word required"),
        ("a.B;", "the word required"),
        ("a.B mandatory;", "the word required"),
        ("a.B requiredly;", "the word required"),
        ('a.B user="x";', "the word required"),
        ("; required", "it does not begin with the class"),
        ("a.B required", "the semicolon at its end is missing"),
        ('a.B required user="x"', "the semicolon at its end is missing"),
        ("a.B required user;", "an option is not NAME="),
        ("a.B required user=;", "an option is not NAME="),
        ("a.B required user", "an option is not NAME="),
        ("a.B required user:x;", "an option is not NAME="),
        ("a.B required #=x;", "an option is not NAME="),
        ('a.B required user="x;', "an option is not NAME="),
        ('a.B required user="x\n";', "an option is not NAME="),
        ('a.B required user="x\\";', "an option is not NAME="),
        ('a.B required user="x\\', "an option is not NAME="),
        ("a.B required a=x // c=d;\n;", "an option is not NAME="),
        ("a.B required a=x /* c */;", "an option is not NAME="),
        ('a.B required a="\\101";', "a backslash before a digit"),
        ("a.B required a='x\\\\\\0';", "a backslash before a digit"),
        ("a.B required;;", "it does not begin with the class"),
    ],
)
def test_texts_that_are_refused(text, reason):
    with pytest.raises(JaasError) as caught:
        parse_jaas(text)
    assert reason in str(caught.value)


def test_several_modules():
    assert [module.name for module in parse_jaas("a.B required; c.D optional x=y;")] == ["a.B", "c.D"]


def quoted(value):
    """Write a text as Java's StreamTokenizer reads it."""
    return '"' + "".join({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r"}.get(c, c) for c in value) + '"'


NAMES = st.from_regex(r"[A-Za-z_$][A-Za-z_$0-9.-]{0,12}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SPACE = st.text(" \t\n\r", min_size=1, max_size=3)


@given(NAMES, st.sampled_from(["required", "Optional", "SUFFICIENT"]), st.dictionaries(NAMES, VALUES), st.data())
def test_what_is_written_is_read(name, flag, options, data):
    parts = [name, flag, *(f"{option}={quoted(value)}" for option, value in options.items()), ";"]
    text = "".join(part + data.draw(SPACE) for part in parts)
    assert parse_jaas(text) == [Module(name, options)]
    assert set(values_in(text)) == set(filter(None, options.values()))
    assert parse_jaas(text * 2) == [Module(name, options)] * 2


TEXT = st.lists(
    st.sampled_from(["a.B", "required", "x", *"=\"'; \n\\/*-.7#ü@"]) | st.characters(),
).map("".join)


@given(TEXT)
def test_any_text_is_read_or_refused_without_a_part_of_it(text):
    secret = "Zq7Zq7"
    for damaged in (text, f'a.B required password="{secret}"{text}', f"a.B required {text} password={secret};"):
        message = ""
        try:
            for module in parse_jaas(damaged):
                assert module.name and all(module.options)
        except JaasError as error:
            message = str(error)
        assert secret not in message
        values_in(damaged)
