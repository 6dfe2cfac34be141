import pytest
import yaml

from data import strict_yaml


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: {a: 2, c: [{a: 3}, {a: 4}]}\n",
        "a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\ne: &y {<<: *x, c: 4}\nf: {<<: *y, c: 5}\n",
        "1: a\n'1': b\n",
        "just words",
        "",
    ],
)
def test_what_has_no_key_twice_is_read_as_ever(text):
    assert strict_yaml.load(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\n# c\na: 3\n", 4, "the key 'a' stands in line 1 already: take one of them out"),
        ("a: {b: 1, b: 1}", 1, "the key 'b' stands in line 1 already"),
        ("a:\n- c: {d: 1}\n- c: 2\n  e: 3\n  c: 4\n", 5, "the key 'c' stands in line 3 already"),
        ("a: {1: x,\n 1: y}", 2, "the key '1' stands in line 1 already"),
    ],
)
def test_a_key_that_stands_twice_is_named_with_both_lines(text, line, said):
    with pytest.raises(strict_yaml.DuplicateKey) as caught:
        strict_yaml.load(text)
    assert caught.value.line == line and str(caught.value).startswith(said)


def test_an_object_of_another_type_is_not_made():
    with pytest.raises(yaml.YAMLError):
        strict_yaml.load("!!python/object/apply:os.getcwd []")
