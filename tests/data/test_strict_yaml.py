import pytest
import yaml

from data import strict_yaml
from data.errors import InputError


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
    assert strict_yaml.load(text.encode(), "a.yaml") == yaml.safe_load(text)


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
    with pytest.raises(InputError) as caught:
        strict_yaml.load(text.encode(), "a.yaml")
    assert str(caught.value).startswith(f"a.yaml:{line}: {said}")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"a: [1,\n  2", id="unfinished"),
        pytest.param(b"\xff\xfe\x00junk", id="UTF-16 cut off"),
        pytest.param(b"a: \xe4", id="Latin-1"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"!!python/object/apply:os.getcwd []", id="an object of another type"),
        pytest.param(b"!!int x", id="no number"),
    ],
)
def test_what_is_not_plain_yaml_is_one_line_that_names_the_file(content):
    with pytest.raises(InputError, match=r"^a\.yaml: not a YAML file: [^\n]+$"):
        strict_yaml.load(content, "a.yaml")
