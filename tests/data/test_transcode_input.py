"""Reading CSV and parquet: every row as it stands, against Python's own reader; faults with their file and line."""

import csv
import gzip
import io
import os
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.csv_text import CsvFormat
from data.errors import InputError
from data.transcode_input import open_tables

SIZES = (64, 67, 300, 1 << 20)


def rows(path, form=None, names=None, block_bytes=1 << 20):
    """All rows as tuples; checks that the batches follow each other in every file."""
    tables = open_tables(str(path), form=form or CsvFormat(), block_bytes=block_bytes)
    found, expected = [], {}
    for batch in tables.batches(names or tables.columns):
        assert batch.first_row == expected.get(batch.path, 0)
        expected[batch.path] = batch.first_row + batch.table.num_rows
        found += list(zip(*batch.table.to_pydict().values(), strict=True))
    return found


def fault(path, form=None, block_bytes=1 << 20):
    with pytest.raises(InputError) as error:
        rows(path, form, block_bytes=block_bytes)
    return str(error.value)


@pytest.fixture
def write(tmp_path):
    def to(text, name="t.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return to


NASTY = (
    "id,text,tags\n"
    '18446744073709551617,"a, ""quoted"" text\nover two lines","[1, 2]"\n'
    "007,é|ü,\\N\n"
    "\n"
    '"",mid"quote, x \n'
    '1e5,"",a|b\n'
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_csv_comes_as_it_is_written(write, size, ends):
    path = write(NASTY.replace("\n", ends))
    expected = [
        ("18446744073709551617", f'a, "quoted" text{ends}over two lines', "[1, 2]"),
        ("007", "é|ü", None),
        (None, 'mid"quote', " x "),
        ("1e5", None, "a|b"),
    ]
    assert rows(path, block_bytes=size) == expected
    assert rows(path, names=["tags"], block_bytes=size) == [row[2:] for row in expected]


@pytest.mark.parametrize("size", SIZES)
def test_against_pythons_reader(write, size):
    """Fields of all kinds, at all places, and the lines on which the records begin."""
    fields = ["", "a", "1,5", 'say "x"', "two\nlines", "\r\n", " ", "[1,2]", '"', "é"]
    table = [(str(i), fields[i % 10], fields[i // 10 % 10], fields[i // 3 % 10]) for i in range(500)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([("n", "a", "b", "c"), *table])
    path = write(buffer.getvalue())
    assert rows(path, block_bytes=size) == [tuple(value or None for value in row) for row in table]
    tables, lines = open_tables(path, form=CsvFormat()), io.StringIO(buffer.getvalue(), newline="")
    reader = csv.reader(lines)
    next(reader)
    for number in range(500):
        line = reader.line_num + 1
        assert next(reader)[0] == str(number)
        if number % 37 == 0:
            assert tables.where(path, number) == f"{path} line {line}"


def test_forms(write):
    tabs = write("a\tb,c\n1\t2,3\n")
    assert rows(tabs, CsvFormat(delimiter="\\t")) == [("1", "2,3")] == rows(tabs, CsvFormat(delimiter="\t"))
    bare = write("1;2\n3;4\n")
    form = CsvFormat(delimiter=";", header=False)
    assert open_tables(bare, form=form).columns == ("c0", "c1") and rows(bare, form) == [("1", "2"), ("3", "4")]
    named = CsvFormat(delimiter=";", header=False, columns=("x", "y"))
    assert open_tables(bare, form=named).columns == ("x", "y") and rows(bare, named)[0] == ("1", "2")
    assert rows(write("a,b\nNA,?\nnull,1\n"), CsvFormat(missing=("NA", "?"))) == [(None, None), ("null", "1")]
    assert rows(write(b"\xef\xbb\xbfa,b\n1,2\n")) == [("1", "2")]
    assert rows(write(b"\xef\xbb\xbf1,2\n"), CsvFormat(header=False)) == [("1", "2")]
    assert rows(write('\n\n"a\nb",c\n1,2')) == [("1", "2")]
    assert open_tables(write(",a,\n0,1,2\n"), form=CsvFormat()).columns == ("", "a", "")


def test_a_folder_is_read_in_the_order_of_its_names(write, tmp_path):
    write("a,b\n3,4\n", "in/part-1.csv")
    write("a,b\n", "in/part-2.csv")  # of a writer that had nothing left
    write("a,b", "in/part-3.csv")
    write(gzip.compress(b"a,b\n1,2\n"), "in/part-0.csv.gz")
    write("", "in/_SUCCESS")
    write("x", "in/.part-1.csv.crc")
    write("a,b\n5,6\n", "in/deeper/part-9.csv")
    assert sorted(rows(tmp_path / "in")) == [("1", "2"), ("3", "4"), ("5", "6")]
    assert rows(tmp_path / "in") == rows(f"file://{tmp_path}/in") == rows(f"fsspec+file://{tmp_path}/in")


def test_gzip_of_several_members(write):
    assert rows(write(gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n"), "t")) == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n\n3\n", " line 4: the record has 1 fields instead of 2; correct it"),
        ('a,b\n"1\n\n",2\n3,4,5\n', " line 5: the record has 3 fields instead of 2; correct it"),
        ("a,b\n" + "1,2\n" * 200 + "3\n", " line 202: the record has 1 fields instead of 2"),
        (b"a,b\n1,2\n3,\xff\n", " line 3: holds bytes that are not UTF-8; convert the file"),
        (b"a,b\n" + b"1,2\n" * 200 + b"3,\xff\n", " line 202: holds bytes that are not UTF-8"),
        (b"a\xe9,b\n1,2\n", " line 1: holds bytes that are not UTF-8"),
        ('a,b\n1,2\n3,"x', " line 3: the file ends inside a quoted field; close the quote"),
        ('a,b\n1,2\n3,"x""\n', " line 3: the file ends inside a quoted field"),
        ('a,b\n1,2\n3,"', " line 3: the file ends inside a quoted field"),
        ('a,b\n1,2\n"3,4\n5,6\n', " line 3: the record has 1 fields instead of 2 and runs to line 4: is a quote not"),
        ("", ": is empty; remove it, or write it again"),
        ("\n\n", ": is empty"),
        ("a,b,a\n1,2,3\n", ": the column name 'a' is there 2 times; rename one"),
    ],
)
def test_faults_name_file_and_line(write, text, message, size):
    path = write(text)
    assert fault(path, block_bytes=size).startswith(f"{path}{message}")


def test_a_file_that_ends_with_a_quoted_field_is_whole(write):
    for last in ('"x"', '"x"\n', '""', '"x"""', '"\n"', '"a,"', ',"', 'x"'):
        text = f"a,b\n1,{last}" if last[0] != "," else f"a,b,c\n1,2{last}"
        if last == ',"':
            assert "inside a quoted field" in fault(write(text))
        else:
            assert len(rows(write(text))) == 1, last


def test_a_quote_that_is_not_closed_in_a_large_file(write):
    path = write("a,b\n1,2\n" + '3,"x\n' + "5,6\n" * 1000)
    assert "line 3: this record or one soon after is longer than 100 bytes: is a quote" in fault(path, block_bytes=100)


@pytest.mark.parametrize("cut", [1, 8, 2000])
def test_a_truncated_gzip(write, cut):
    packed = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(5000)))
    path = write(packed[:-cut], "t.csv.gz")
    message = fault(path)
    assert message.startswith(f"{path} line ") and "the file is truncated or damaged, write it again" in message


def test_files_that_do_not_belong_together(write, tmp_path):
    first = write("a,b\n1,2\n", "in/1.csv")
    second = write("a,c\n1,2\n", "in/2.csv")
    message = fault(tmp_path / "in")
    assert message.startswith(f"{second}: its header differs from that of {first}: it lacks ['b'] and it has ['c']")
    write("b,a\n1,2\n", "in/2.csv")
    assert "the order is ['b', 'a'] instead of ['a', 'b']" in fault(tmp_path / "in")
    write("", "in/2.csv")
    assert fault(tmp_path / "in").startswith(f"{second}: is empty")
    pq.write_table(pa.table({"a": [1]}), second)
    message = fault(tmp_path / "in")
    assert f"holds parquet ({second}) and other files ({first})" in message
    bare = CsvFormat(header=False, columns=("a", "b", "c"))
    assert fault(first, bare).startswith(f"{first} line 1: has 2 fields, but --columns names 3")


def test_nothing_there(tmp_path):
    assert fault(tmp_path / "no") == f"{tmp_path}/no: no such file or folder"
    (tmp_path / "empty").mkdir()
    assert fault(tmp_path / "empty") == f"{tmp_path}/empty: the folder holds no files"
    assert "cannot reach that filesystem" in fault("nosuch://place/file")


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", "é"])
def test_bad_delimiters(delimiter):
    with pytest.raises(InputError, match="--delimiter="):
        CsvFormat(delimiter=delimiter)


def test_names_without_no_header():
    with pytest.raises(InputError, match="add --no_header, or drop --columns"):
        CsvFormat(columns=("a",))


def parquet(path, table, **options):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pq.write_table(pa.table(table), path, **options)
    return str(path)


@pytest.mark.parametrize("size", SIZES)
def test_parquet_with_hive_partitions(tmp_path, size):
    root = tmp_path / "in"
    parquet(f"{root}/day=01/city=New%20York/a.parquet", {"x": list(range(40)), "s": [""] * 40}, row_group_size=7)
    parquet(
        f"{root}/day=02/city=__HIVE_DEFAULT_PARTITION__/a.parquet",
        {"s": ["\\N", "a"], "x": pa.array([1, None], pa.int8())},
    )
    expected = [(i, None, "01", "New York") for i in range(40)] + [(1, None, "02", None), (None, "a", "02", None)]
    assert rows(root, block_bytes=size) == expected
    assert rows(f"fsspec+file://{root}", block_bytes=size) == expected
    assert rows(root, names=["city"], block_bytes=size) == [(row[3],) for row in expected]
    tables = open_tables(str(root), form=CsvFormat())
    assert (tables.columns, tables.partitions) == (("x", "s", "day", "city"), ("day", "city"))
    assert tables.where("f", 0) == "f row 1"


def test_parquet_keeps_types_but_for_dictionaries(tmp_path):
    table = {"u": pa.array([2**64 - 1], pa.uint64()), "l": [[1, 2]], "d": pa.array(["NA"]).dictionary_encode()}
    path = parquet(tmp_path / "t.parquet", table)
    assert rows(path) == [(2**64 - 1, [1, 2], "NA")]
    assert rows(path, CsvFormat(missing=("NA",))) == [(2**64 - 1, [1, 2], None)]


def test_parquet_faults(tmp_path, write):
    first = parquet(tmp_path / "in" / "1.parquet", {"a": list(range(1000))})
    second = parquet(tmp_path / "in" / "2.parquet", {"b": [1]})
    assert f"{second}: its columns differ from those of {first}: it lacks ['a'] and it has ['b']" in fault(
        tmp_path / "in"
    )
    whole = pathlib.Path(first).read_bytes()
    assert fault(write(whole[:-20], "cut")).startswith(f"{tmp_path}/cut: not a readable parquet file")
    damaged = write(whole[:40] + bytes(200) + whole[240:], "damaged")
    assert fault(damaged).startswith(f"{damaged} row 1: cannot be decoded from there on")
