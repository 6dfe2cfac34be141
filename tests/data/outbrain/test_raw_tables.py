import pyarrow as pa
import pytest

from data.errors import InputError
from data.outbrain import raw_tables
from data.outbrain.raw_tables import OPTIONAL_TABLES, TABLES, find_tables, read_table

ROWS = {
    "clicks_train": "1,10,0",
    "events": "1,u,5,61,3,US>SC>519",
    "promoted_content": "10,5,7,9",
    "documents_meta": "5,1,2,2016-06-05 00:00:00",
    "documents_categories": "5,1611,0.92",
    "documents_topics": "5,140,0.07",
    "documents_entities": "5,f9eec25663db4cd83183f5c805186f16,0.67",
}


def write(folder, table, lines, *, header=None, end="\n"):
    text = "\n".join([",".join(TABLES[table]) if header is None else header, *lines]) + end
    (folder / f"{table}.csv").write_text(text)


def read(folder, table, **options):
    return pa.concat_tables(read_table(str(folder), table, **options)).to_pydict()


@pytest.fixture
def folder(tmp_path):
    for table, row in ROWS.items():
        write(tmp_path, table, [row])
    return tmp_path


def test_all_missing_tables_are_named_at_once(folder):
    assert find_tables(str(folder), allow_missing=False) == tuple(TABLES)
    for table in ("documents_meta", "documents_entities"):
        (folder / f"{table}.csv").unlink()
    with pytest.raises(InputError, match=r"lacks documents_meta\.csv, documents_entities\.csv; .*--allow_miss"):
        find_tables(str(folder), allow_missing=False)
    found = find_tables(str(folder), allow_missing=True)
    assert set(found) == set(TABLES) - {"documents_meta", "documents_entities"}
    (folder / "events.csv").unlink()
    with pytest.raises(InputError, match=r"lacks events\.csv; put them there \(unpacked\)$"):
        find_tables(str(folder), allow_missing=True)
    with pytest.raises(InputError, match=r"lacks events\.csv, documents_meta\.csv, documents_entities\.csv; put them"):
        find_tables(str(folder), allow_missing=False)
    with pytest.raises(InputError, match="no such folder; --data_path"):
        find_tables(str(folder / "nowhere"), allow_missing=True)
    assert set(OPTIONAL_TABLES) | set(raw_tables.REQUIRED_TABLES) == set(TABLES)


def test_values_and_gaps(tmp_path):
    write(tmp_path, "events", ["1,u,5,61,3,US>SC>519", "2,,\\N,0,\\N,", "3,v,,86400000,1,\\N"])
    assert read(tmp_path, "events", columns=["display_id", "document_id", "timestamp", "platform", "geo_location"]) == {
        "display_id": [1, 2, 3],
        "document_id": [5, -1, -1],
        "timestamp": [61, 0, 86400000],
        "platform": [3, -1, 1],
        "geo_location": ["US>SC>519", None, None],
    }
    write(tmp_path, "documents_meta", ["5,1,,2016-06-05 12:00:00", "6,\\N,2,", "0,,,1999-12-31 00:00:00"])
    found = read(tmp_path, "documents_meta")
    assert found["source_id"] == [1, -1, -1] and found["publisher_id"] == [-1, 2, -1]
    assert [time and time.isoformat() for time in found["publish_time"]] == [
        *("2016-06-05T12:00:00", None, "1999-12-31T00:00:00")
    ]


@pytest.mark.parametrize("table", ROWS)
def test_every_table_is_read_and_its_first_column_is_required(folder, table):
    assert all(len(values) == 1 for values in read(folder, table).values())
    name = next(iter(TABLES[table]))
    write(folder, table, [ROWS[table], "," + ROWS[table].split(",", 1)[1]])
    with pytest.raises(InputError, match=rf"{table}\.csv, line 3: {name} is missing; every row needs one"):
        read(folder, table)


@pytest.mark.parametrize(
    ("table", "bad", "message"),
    [
        ("clicks_train", "1,2", r"line {}: Expected 3 columns, got 2"),
        ("clicks_train", "1,2,0,5", r"line {}: Expected 3 columns, got 4"),
        ("clicks_train", "1,x,0", r"line {}: CSV conversion error to int64: invalid value 'x'"),
        ("clicks_train", "1,2.5,0", r"line {}: CSV conversion error to int64"),
        ("clicks_train", "1,99999999999999999999,0", r"line {}: CSV conversion error to int64"),
        ("clicks_train", "1,2,2", r"line {}: clicked is 2, not in 0\.\.1"),
        ("clicks_train", "-1,2,0", r"line {}: display_id is -1, not in 0\.\."),
        ("events", "1,u,5,61,4,US", r"line {}: platform is 4, not in 0\.\.3"),
        ("events", "1,u,5,-61,1,US", r"line {}: timestamp is -61"),
        ("documents_meta", "5,1,2,yesterday", r"line {}: CSV conversion error to timestamp.*'yesterday'"),
        ("documents_topics", "5,1,nan", r"line {}: confidence_level is nan, not a finite number from 0"),
        ("documents_topics", "5,1,inf", r"line {}: confidence_level is inf, not a finite number from 0"),
        ("documents_topics", "5,1,", r"line {}: confidence_level is missing"),
        ("documents_topics", "5,1,-0.5", r"line {}: confidence_level is -0\.5"),
        ("documents_entities", "5,,0.5", r"line {}: entity_id is missing"),
    ],
)
@pytest.mark.parametrize("before", [0, 5000])
def test_bad_rows_by_file_and_line(tmp_path, table, bad, message, before):
    write(tmp_path, table, [*[ROWS[table]] * before, bad, ROWS[table]])
    with pytest.raises(InputError, match=message.format(before + 2)) as error:
        read(tmp_path, table, block_bytes=4096)
    assert f"{tmp_path}/{table}.csv" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("before", [0, 500])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"2,u,5,61,3,\xff\xfe", r"line {}: CSV conversion error to string: invalid UTF8"),
        (b"", r"line {}: display_id is missing"),
        (b'2,"u,5,61,3,US', r"in line {} or after it: CSV parser got out of sync"),
    ],
    ids=["no text", "an empty line", "an open quotation mark"],
)
def test_bad_lines_that_are_no_rows(tmp_path, bad, message, before):
    rows = [ROWS["events"].encode()] * before
    text = b"\n".join([",".join(TABLES["events"]).encode(), *rows, bad, *[ROWS["events"].encode()] * 100, b""])
    (tmp_path / "events.csv").write_bytes(text)
    with pytest.raises(InputError, match=message.format(before + 2)):
        read(tmp_path, "events", block_bytes=256)


def test_lines_after_an_empty_one_keep_their_numbers(tmp_path):
    write(tmp_path, "clicks_train", ["1,2,0", "", "1,x,0"])
    with pytest.raises(InputError, match="line 4: CSV conversion"):
        read(tmp_path, "clicks_train")


@pytest.mark.parametrize(
    ("header", "lines", "end", "message"),
    [
        (
            "display,ad,clicked",
            ["1,2,0"],
            "\n",
            r"line 1: the header is 'display,ad,clicked', not 'display_id",
        ),
        ("display_id,ad_id", ["1,2"], "\n", r"line 1: the header is 'display_id,ad_id', not"),
        ("display_id,ad_id,ad_id", ["1,2,3"], "\n", r"line 1: the header is"),
        ("1,2,0", ["1,2,0"], "\n", r"line 1: the header is '1,2,0', not"),
        (None, [], "\n", r"line 2: the file holds a header and no rows; unpack or download it again"),
        ("", [], "", r"line 1: the file is empty"),
        (None, ["1,2,0", "1,3,"], "", r"line 3: the file ends inside a line, so it is cut off"),
        (None, ["1,2,0", "1,3,1"], "", r"line 3: the file ends inside a line"),
    ],
)
def test_files_that_are_not_whole_or_not_the_ones(tmp_path, header, lines, end, message):
    write(tmp_path, "clicks_train", lines, header=header, end=end)
    with pytest.raises(InputError, match=rf"clicks_train\.csv, {message}"):
        read(tmp_path, "clicks_train")


def test_other_ways_to_write_the_same(tmp_path):
    expected = {"display_id": [1], "ad_id": [2], "clicked": [0]}
    for text in ("display_id,ad_id,clicked\r\n1,2,0\r\n", '"display_id","ad_id","clicked"\n"1","2","0"\n'):
        (tmp_path / "clicks_train.csv").write_text(text)
        assert read(tmp_path, "clicks_train") == expected
    (tmp_path / "clicks_train.csv").write_text("clicked,ad_id,display_id\n0,2,1\n")
    assert read(tmp_path, "clicks_train", columns=["display_id", "ad_id", "clicked"]) == expected


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "events.csv").mkdir()
    with pytest.raises(InputError, match=r"events\.csv: cannot be read"):
        read(tmp_path, "events")
