import csv
import math
import os
import pathlib
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.input_pipeline import ParquetInput
from data.outbrain import sample, schema
from trainer.metrics import map_at_k

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROMOTED = ("document_id_promo", "campaign_id", "advertiser_id")


def write_csv(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


class RawFiles:
    """Made-up raw files: 300 displays of 2 to 6 of 40 ads; ads 31 to 40 and a tenth of the displays join nothing."""

    def __init__(self):
        rng = np.random.default_rng(7)
        self.clicks, self.events, self.promoted = [], {}, {}
        for ad in range(1, 31):
            document = 500 + ad // 2 if ad % 7 else None
            self.promoted[ad] = (document, 900 + ad // 3, 700 + ad // 10)
        for display in range(1, 301):
            ads = rng.choice(40, rng.integers(2, 7), replace=False) + 1
            clicked = rng.integers(len(ads))
            self.clicks += [(display, int(ad), int(n == clicked)) for n, ad in enumerate(ads)]
            if display % 10:
                location = ["US>CA>807", "US>CO", "NA", r"\N", ""][display % 5]
                self.events[display] = (1 + display % 60, [1, 2, r"\N"][display % 3], location)

    def write(self, folder, clicks=None):
        os.makedirs(folder, exist_ok=True)
        write_csv(folder / "clicks_train.csv", ("display_id", "ad_id", "clicked"), clicks or self.clicks)
        write_csv(
            folder / "events.csv",
            ("display_id", "uuid", "document_id", "timestamp", "platform", "geo_location"),
            [(d, f"u{d}", page, 61, platform, place) for d, (page, platform, place) in self.events.items()],
        )
        write_csv(
            folder / "promoted_content.csv",
            ("ad_id", "document_id", "campaign_id", "advertiser_id"),
            [(ad, r"\N" if document is None else document, *rest) for ad, (document, *rest) in self.promoted.items()],
        )
        return str(folder)

    def known(self, display, ad):
        """Raw values of a row by column; None where missing."""
        page, platform, place = self.events.get(display, (None, None, None))
        place = None if place in ("", r"\N") else place
        return {
            "document_id": page,
            "ad_id": ad,
            **dict(zip(PROMOTED, self.promoted.get(ad, (None, None, None)), strict=True)),
            "geo_location": place,
            "geo_location_state": place and place[:5],
            "geo_location_country": place and place[:2],
            "platform": None if platform == r"\N" else platform,
        }


@pytest.fixture(scope="module")
def raw():
    return RawFiles()


@pytest.fixture(scope="module")
def written(raw, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    return sample.prepare(raw.write(folder / "raw"), str(folder / "made"), seed=5, test_fraction=0.3)


def columns(spec, source):
    return pq.read_table(spec.source_files(source)[0]).to_pydict()


def by_row(spec, source):
    """(display, ad rank within it, clicked) cannot name a row; its place in the raw file can: rows keep their order."""
    table = columns(spec, source)
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def raw_rows(raw, spec, source):
    displays = set(columns(spec, source)["display_id"])
    return [row for row in raw.clicks if row[0] in displays]


@pytest.fixture(scope="module")
def folds(raw, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds")
    source = raw.write(folder / "raw")
    return [sample.prepare(source, str(folder / f"fold-{k}"), seed=5, fold=(k, 3)) for k in (1, 2, 3)]


def test_folds_hold_out_each_display_once(raw, folds):
    held_out = [set(columns(spec, "test")["display_id"]) for spec in folds]
    assert sorted(display for one in held_out for display in one) == list(range(1, 301))
    assert all(80 <= len(one) <= 120 for one in held_out)
    for number, (spec, one) in enumerate(zip(folds, held_out, strict=True), start=1):
        assert set(columns(spec, "train")["display_id"]) == set(range(1, 301)) - one
        facts = spec.metadata["outbrain_sample"]
        assert (facts["fold"], facts["test_displays"], facts["train_displays"]) == (
            [number, 3],
            len(one),
            300 - len(one),
        )
        assert "test_fraction" not in facts


def test_the_baseline_of_a_fold_is_of_the_other_folds_clicks(raw, folds, tmp_path):
    spec = folds[1]
    held_out = set(columns(spec, "test")["display_id"])
    shows, clicks = Counter(), Counter()
    for display, ad, clicked in raw.clicks:
        if display not in held_out:
            shows[ad] += 1
            clicks[ad] += clicked
    mean = sum(clicks.values()) / sum(shows.values())
    rows = [row for row in raw.clicks if row[0] in held_out]
    # As float32, as the dataset has them, so that equal rates are ties in both.
    rates = [np.float32(math.log((clicks[ad] + 20 * mean) / (shows[ad] + 20) / mean)) for _, ad, _ in rows]
    ids, labels = (np.array([row[n] for row in rows]) for n in (0, 2))
    facts = spec.metadata["outbrain_sample"]
    assert facts["ctr_map_at_12"] == pytest.approx(map_at_k(ids, labels, np.array(rates)), abs=2e-3)
    assert facts["chance_map_at_12"] == pytest.approx(map_at_k(ids, labels, np.zeros(len(ids))), abs=1e-12)
    # Other clicks on held-out displays change nothing that is known of them.
    moved = [(d, ad, c if d not in held_out else int(ad == min(a for e, a, _ in raw.clicks if e == d)))
             for d, ad, c in raw.clicks]  # fmt: skip
    again = sample.prepare(raw.write(tmp_path / "raw", moved), str(tmp_path / "made"), seed=5, fold=(2, 3))
    before, after = (columns(one, "test") for one in (spec, again))
    assert before.pop("clicked") != after.pop("clicked") and before == after
    assert columns(again, "train") == columns(spec, "train")


def test_every_row_comes_out_once_on_one_side(raw, written):
    train, test = columns(written, "train"), columns(written, "test")
    assert not set(train["display_id"]) & set(test["display_id"])
    for source, table in (("train", train), ("test", test)):
        rows = raw_rows(raw, written, source)
        assert table["display_id"] == [row[0] for row in rows]
        assert table["clicked"] == [row[2] for row in rows]
    assert len(train["clicked"]) + len(test["clicked"]) == len(raw.clicks)
    facts = written.metadata["outbrain_sample"]
    assert (facts["rows"], facts["displays"]) == (len(raw.clicks), 300)
    assert (facts["train_rows"], facts["test_rows"]) == (len(train["clicked"]), len(test["clicked"]))
    assert (facts["train_displays"], facts["test_displays"]) == tuple(
        len(set(table["display_id"])) for table in (train, test)
    )
    assert facts["rows_without_promoted_content"] == sum(ad > 30 for _, ad, _ in raw.clicks)
    assert facts["rows_without_event"] == sum(display % 10 == 0 for display, _, _ in raw.clicks)


def test_ids_are_the_joined_values_by_a_vocabulary_of_the_training_displays(raw, written):
    displays = defaultdict(lambda: defaultdict(set))
    for display, ad, _ in raw_rows(raw, written, "train"):
        for name, value in raw.known(display, ad).items():
            displays[name][value].add(display)
    kinds = Counter()
    for name in sample.ONEHOT:
        common = sorted(v for v, seen in displays[name].items() if v is not None and len(seen) >= sample.MIN_DISPLAYS)
        assert written.features[name].cardinality == len(common) + 1
        vocabulary = {value: number for number, value in enumerate(common, start=1)}
        for source in ("train", "test"):
            values = [raw.known(display, ad)[name] for display, ad, _ in raw_rows(raw, written, source)]
            expected = [None if value is None else vocabulary.get(value, 0) for value in values]
            assert columns(written, source)[name] == expected, (name, source)
            kinds.update("null" if v is None else "rare" if v == 0 else "common" for v in expected)
    assert all(kinds[kind] > 20 for kind in ("null", "rare", "common")), kinds


def test_rates_and_counts_of_held_out_rows_are_of_all_training_rows(raw, written):
    train = raw_rows(raw, written, "train")
    mean = sum(clicked for *_, clicked in train) / len(train)
    for name in sample.RATED:
        shows, clicks = Counter(), Counter()
        for display, ad, clicked in train:
            value = raw.known(display, ad)[name]
            shows[value] += 1
            clicks[value] += clicked
        shows[None] = clicks[None] = 0
        test = columns(written, "test")
        for number, (display, ad, _) in enumerate(raw_rows(raw, written, "test")):
            value = raw.known(display, ad)[name]
            rate = (clicks[value] + 20 * mean) / (shows[value] + 20)
            assert test[f"{name}_ctr"][number] == pytest.approx(math.log(rate / mean), abs=1e-6)
            if name in sample.COUNTED:
                assert test[f"{name}_count"][number] == pytest.approx(math.log(1 + shows[value]), abs=1e-6)


def test_a_training_row_knows_nothing_of_the_clicks_of_its_own_display(raw, written, tmp_path):
    history = [name for name in sample.NUMERICAL if name.endswith("_ctr")]
    before = by_row(written, "train")
    changed = before[0]["display_id"]
    last = max(n for n, row in enumerate(raw.clicks) if row[0] == changed and not row[2])
    clicks = [(d, ad, int(n == last) if d == changed else c) for n, (d, ad, c) in enumerate(raw.clicks)]
    spec = sample.prepare(raw.write(tmp_path / "raw", clicks), str(tmp_path / "made"), seed=5, test_fraction=0.3)
    differs = Counter()
    for old, new in zip(before, by_row(spec, "train"), strict=True):
        assert old["display_id"] == new["display_id"]
        own = old["display_id"] == changed
        differs[own] += [old[name] for name in history] != [new[name] for name in history]
        if own:
            differs["label"] += old["clicked"] != new["clicked"]
    assert differs["label"] == 2
    assert differs[True] == 0
    assert differs[False] > 10


def test_with_permuted_labels_rates_rank_training_rows_by_chance(outbrain_sample, tmp_path):
    with open(outbrain_sample / "clicks_train.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    displays = np.array([int(row[0]) for row in rows])
    labels = np.array([int(row[2]) for row in rows])
    order = np.lexsort((np.random.default_rng(3).random(len(rows)), displays))
    write_csv(
        tmp_path / "clicks_train.csv", header, [(*row[:2], labels[n]) for row, n in zip(rows, order, strict=True)]
    )
    for name in ("events.csv", "promoted_content.csv"):
        (tmp_path / name).write_bytes((outbrain_sample / name).read_bytes())
    train = columns(sample.prepare(str(tmp_path), str(tmp_path / "made")), "train")
    ids, clicked = (np.array(train[name]) for name in ("display_id", "clicked"))
    chance = map_at_k(ids, clicked, np.zeros(len(ids)))
    for name in sample.RATED:
        for sign in (1, -1):
            score = map_at_k(ids, clicked, sign * np.array(train[f"{name}_ctr"]))
            assert score == pytest.approx(chance, abs=0.03), (name, sign)


def test_the_missing_flag(raw, written):
    for source in ("train", "test"):
        expected = [float(ad > 30) for _, ad, _ in raw_rows(raw, written, source)]
        assert columns(written, source)[sample.PROMO_MISSING] == expected


def test_the_training_program_reads_it_in_order(written):
    rows = ParquetInput(written, "test", with_display=True)
    assert rows.displays_sorted(0, 1)[0]
    with rows.eval_stream(global_batch_size=64) as stream:
        batches = list(stream.arrays())
    real = np.concatenate([batch["mask"] for batch in batches]) > 0
    ids = np.concatenate([batch["ids"] for batch in batches])[real]
    test = columns(written, "test")
    assert ids[:, written.onehot.index("campaign_id")].tolist() == [
        -1 if value is None else value for value in test["campaign_id"]
    ]
    assert np.concatenate([batch["group_ids"] for batch in batches])[real].tolist() == test["display_id"]


def test_names_are_outbrains_but_for_the_flag(written):
    outbrain = schema.outbrain_feature_spec()
    assert set(written.onehot) < set(outbrain.onehot)
    assert set(written.numerical) - set(outbrain.numerical) == {sample.PROMO_MISSING}
    assert (written.label, written.display) == (outbrain.label, outbrain.display)


def test_the_side_of_a_display_depends_on_seed_and_id_alone(raw, written, tmp_path):
    shuffled = [row for row in raw.clicks if row[0] % 3][::-1]
    spec = sample.prepare(raw.write(tmp_path / "raw", shuffled), str(tmp_path / "made"), seed=5, test_fraction=0.3)
    for source in ("train", "test"):
        expected = sorted(d for d in columns(written, source)["display_id"] if d % 3)
        assert columns(spec, source)["display_id"] == expected
    other = sample.prepare(raw.write(tmp_path / "raw2"), str(tmp_path / "other"), seed=6, test_fraction=0.3)
    assert set(columns(other, "test")["display_id"]) != set(columns(written, "test")["display_id"])


def test_the_printed_figures_are_the_trainers(written):
    test, facts = columns(written, "test"), written.metadata["outbrain_sample"]
    ids, clicked, rates = (np.array(test[name]) for name in ("display_id", "clicked", "ad_id_ctr"))
    assert facts["ctr_map_at_12"] == pytest.approx(map_at_k(ids, clicked, rates), abs=1e-12)
    assert facts["chance_map_at_12"] == pytest.approx(map_at_k(ids, clicked, np.zeros(len(ids))), abs=1e-12)
    assert facts["ctr_map_at_12"] != pytest.approx(facts["chance_map_at_12"], abs=1e-3)


def test_the_same_arguments_give_the_same_bytes(raw, written, tmp_path):
    again = sample.prepare(raw.write(tmp_path / "raw"), str(tmp_path / "made"), seed=5, test_fraction=0.3)
    for source in ("train", "test"):
        first, second = (pathlib.Path(spec.source_files(source)[0]) for spec in (written, again))
        assert first.read_bytes() == second.read_bytes()
    assert again.to_dict() == written.to_dict()


def test_the_command_line_writes_and_sums_up(raw, tmp_path, capsys):
    source, output = raw.write(tmp_path / "raw"), tmp_path / "deep" / "made"
    assert sample.main(["--input", source, "--output", str(output), "--seed", "5", "--test_fraction", "0.3"]) == 0
    facts = FeatureSpec.from_yaml(str(output / "feature_spec.yaml")).metadata["outbrain_sample"]
    printed = capsys.readouterr().out
    for text in (
        f"{len(raw.clicks)} rows of 300 displays in",
        f"{facts['train_rows']} rows of {facts['train_displays']} displays to train",
        f"{facts['test_rows']} rows of {facts['test_displays']} displays to evaluate",
        f"without promoted content: {facts['rows_without_promoted_content']} rows",
        f"chance {facts['chance_map_at_12']:.4f}",
    ):
        assert text in printed
    assert sorted(path.name for path in output.iterdir()) == ["feature_spec.yaml", "train", "valid"]


def test_the_command_line_takes_a_fold(raw, folds, tmp_path, capsys):
    source, output = raw.write(tmp_path / "raw"), tmp_path / "made"
    assert sample.main(["--input", source, "--output", str(output), "--seed=5", "--fold=2/3"]) == 0
    assert f"{folds[1].metadata['outbrain_sample']['test_displays']} displays to evaluate" in capsys.readouterr().out
    made = FeatureSpec.from_yaml(str(output / "feature_spec.yaml"))
    assert made.metadata == folds[1].metadata


def test_a_fold_and_a_share_exclude_each_other(raw, tmp_path):
    with pytest.raises(InputError, match=r"test_fraction=0\.3 and a fold: .*give one of them"):
        sample.prepare(raw.write(tmp_path / "raw"), str(tmp_path / "made"), test_fraction=0.3, fold=(1, 3))


def test_the_module_can_be_called(tmp_path):
    command = [sys.executable, "-m", "data.outbrain.sample", "--input", str(tmp_path), "--output", str(tmp_path / "o")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == f"{tmp_path}/clicks_train.csv: no such file; --input names the folder of Outbrain's CSV files\n"
    )


CLICKS = "display_id,ad_id,clicked\n"
EVENTS = "display_id,document_id,platform,geo_location\n"
PROMOTED_CONTENT = "ad_id,document_id,campaign_id,advertiser_id\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("events.csv", None, "events.csv: no such file"),
        ("clicks_train.csv", "", "clicks_train.csv: not a readable clicks_train.csv"),
        ("clicks_train.csv", CLICKS, "clicks_train.csv: holds no rows"),
        ("clicks_train.csv", "display_id,ad_id\n1,2\n", "clicks_train.csv: Column 'clicked'"),
        ("clicks_train.csv", CLICKS + "1,2,1\n1,x,0\n", "Row #3: CSV conversion error to int64: invalid value 'x'"),
        ("clicks_train.csv", CLICKS + "1,2,1\n1,3\n", "Row #3: Expected 3 columns, got 2"),
        ("clicks_train.csv", CLICKS + "1,2,1\n1,,0\n", "ad_id is missing on 1 rows"),
        ("clicks_train.csv", CLICKS + "1,2,1\n1,3,2\n", "clicked must be 0 or 1, got 2"),
        ("clicks_train.csv", CLICKS + "1,2,1\n1,3,1\n", "display 1 has 2 clicks"),
        ("clicks_train.csv", CLICKS + "1,2,1\n1,3,0\n", "1 displays are too few"),
        (
            "events.csv",
            "display_id,document_id,platform,geo_location\n1,1,1,US\n1,1,1,US\n",
            "display_id 1 is there twice",
        ),
        (
            "promoted_content.csv",
            "ad_id,document_id,campaign_id,advertiser_id\n,1,2,3\n",
            "ad_id nan is there twice or",
        ),
    ],
)
def test_bad_files_are_one_line_and_leave_nothing(raw, tmp_path, capsys, name, text, message):
    source = raw.write(tmp_path / "raw")
    if text is None:
        os.remove(tmp_path / "raw" / name)
    else:
        (tmp_path / "raw" / name).write_text(text, encoding="utf-8")
    assert sample.main(["--input", source, "--output", str(tmp_path / "made")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed=-1"], "seed=-1"),
        (["--test_fraction=1"], "test_fraction=1.0"),
        (["--test_fraction=0.000001"], "too few to train on 10 and to hold out one"),
        (["--sed=1"], "unrecognized arguments"),
        (["--fold=0/3"], "fold=0/3: give the number of one of at least two folds"),
        (["--fold=4/3"], "fold=4/3"),
        (["--fold=1/1"], "fold=1/1"),
        (["--fold=1"], "'1' is no fold; give two numbers such as 1/3"),
        (["--fold=1/x"], "'1/x' is no fold"),
        (["--fold=1/3", "--test_fraction=0.3"], "not allowed with argument"),
        (["--fold=1/999999"], "too few to train on 10 and to hold out one with fold=1/999999"),
    ],
)
def test_bad_arguments(raw, tmp_path, capsys, arguments, message):
    source = raw.write(tmp_path / "raw")
    assert sample.main(["--input", source, "--output", str(tmp_path / "made"), *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "made").exists()


def test_a_folder_with_something_in_it_is_left_alone(raw, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("precious", encoding="utf-8")
    with pytest.raises(InputError, match="made: holds something already"):
        sample.prepare(raw.write(tmp_path / "raw"), str(tmp_path / "made"))
    assert (tmp_path / "made" / "mine").read_text(encoding="utf-8") == "precious"


def test_a_failed_write_leaves_nothing(raw, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sample.pq, "write_table", fail)
    with pytest.raises(InputError, match="cannot write the dataset: No space left on device"):
        sample.prepare(raw.write(tmp_path / "raw"), str(tmp_path / "made"))
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
