"""A small sample of raw Outbrain clicks -> parquet files and a feature specification, by plain pandas.

    python -m data.outbrain.sample --input DIR --output DIR [--seed S] [--test_fraction F | --fold K/N]

For small samples only, to see the program learn from real clicks: it holds everything in memory and knows nothing of
days and documents. It reads `clicks_train.csv`, `events.csv` and `promoted_content.csv`. An ad without promoted
content, or a display without an event, keeps its rows: what is not known of them is null.

The columns carry Outbrain's names (`data.outbrain.schema`) and mean the same, in sizes that suit a sample:
  ids            1, 2, ... for the values on at least MIN_DISPLAYS training displays, in ascending order; 0 for all
                 others, unseen ones included; null where missing
  *_ctr          log of the click-through rate over the mean rate, both of training rows, the rate drawn towards the
                 mean as if by SMOOTHING more rows: 0 for a value never seen
  *_count        log(1 + training rows)
  promoted_content_missing   1 for an ad that promoted_content.csv lacks, else 0 (not one of Outbrain's names)
A training row's own rates and counts are of the other folds of training rows. A fold is of whole displays: a row of the
same display would give the answer away, since one ad of each is clicked.
"""

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from data import command_line
from data.click_ranking import average_precision, chance_average_precision
from data.errors import InputError
from data.feature_spec import SPEC_FILE, TEST, TRAIN, Chunk, Feature, FeatureSpec
from data.hashing import fractions, seeded_bits
from data.outbrain.schema import DISPLAY, LABEL

DEFAULT_SEED = 0
DEFAULT_TEST_FRACTION = 0.2
MIN_DISPLAYS = 5
SMOOTHING = 20.0
FOLDS = 10

ONEHOT = (
    "document_id",
    "ad_id",
    "document_id_promo",
    "campaign_id",
    "advertiser_id",
    "geo_location",
    "geo_location_state",
    "geo_location_country",
    "platform",
)
RATED = ("ad_id", "document_id_promo", "campaign_id", "advertiser_id")
COUNTED = ("ad_id", "document_id_promo")
PROMO_MISSING = "promoted_content_missing"
NUMERICAL = (*(f"{name}_ctr" for name in RATED), *(f"{name}_count" for name in COUNTED), PROMO_MISSING)

_FILES = {TRAIN: "train/part-00000.parquet", TEST: "valid/part-00000.parquet"}
_SPLIT_STREAM, _FOLD_STREAM = 0, 1


def prepare(
    input_dir: str,
    output_dir: str,
    *,
    seed: int = DEFAULT_SEED,
    test_fraction: float | None = None,
    fold: tuple[int, int] | None = None,
) -> FeatureSpec:
    """Writes `train/` and `valid/` parquet, both sorted by display, and `feature_spec.yaml`, all of it or nothing.

    A display goes to one side by a hash of (seed, display_id) alone. With `fold` the held-out displays of the n folds
    of a seed are disjoint, and together all displays; all that is known of clicks, the rates that the baseline ranks by
    included, is of the other folds' displays.

    Args:
      input_dir: folder of the raw files.
      output_dir: a folder that does not exist or is empty.
      seed: of the split and of the folds, 0 to 2^63-1.
      test_fraction: share of the displays that is held out, as the source `test` in the folder `valid`; None stands
        for DEFAULT_TEST_FRACTION where there is no fold.
      fold: (k, n) holds out the k-th, from 1 on, of n folds of displays of about the same size; n is at least 2.

    Returns:
      The specification as read back. Its `metadata["outbrain_sample"]` has the counts and figures of `summary`.

    Raises:
      InputError: an argument is out of range, a raw file is missing or does not hold what it should, there are too few
        displays, or the output folder holds something or cannot be written.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"seed={seed}: a seed is an integer from 0 to 2^63-1; give another")
    held_out_by = _split(test_fraction, fold)
    output = os.path.abspath(output_dir)
    if os.path.lexists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise InputError(f"{output}: holds something already; remove it or name a new folder")
    rows, missing = join(input_dir)
    place = fractions(seeded_bits(rows[DISPLAY].to_numpy(np.int64), seed, _SPLIT_STREAM))
    if fold is None:
        held_out = place < held_out_by["test_fraction"]
    else:
        held_out = (place * fold[1]).astype(np.int64) == fold[0] - 1
    train, test = rows[~held_out].reset_index(drop=True), rows[held_out].reset_index(drop=True)
    if train[DISPLAY].nunique() < FOLDS or test.empty:
        how = f"test_fraction={held_out_by['test_fraction']}" if fold is None else f"fold={fold[0]}/{fold[1]}"
        raise InputError(
            f"{input_dir}: {rows[DISPLAY].nunique()} displays are too few to train on {FOLDS} and to hold out one with "
            f"{how}; take more clicks"
        )
    tables, cardinalities = _features(train, test, seed)
    metadata = {"seed": seed, **held_out_by}
    for prefix, part in (("", rows), ("train_", train), ("test_", test)):
        metadata |= {f"{prefix}rows": len(part), f"{prefix}displays": int(part[DISPLAY].nunique())}
    metadata |= missing
    shown = test.groupby(DISPLAY).size().to_numpy()
    by_rate = average_precision(tables[TEST]["ad_id_ctr"].to_numpy(), test[LABEL].to_numpy(), shown)
    metadata["ctr_map_at_12"] = float(by_rate.mean())
    metadata["chance_map_at_12"] = float(chance_average_precision(shown).mean())
    spec = _spec(cardinalities, metadata)
    partial = f"{output}.{os.getpid()}.partial"
    try:
        for source, file in _FILES.items():
            os.makedirs(os.path.dirname(os.path.join(partial, file)))
            # With this schema, ids that pandas holds as floats for the sake of their gaps become integers and nulls.
            table = pa.Table.from_pandas(tables[source], schema=_schema(), preserve_index=False)
            pq.write_table(table, os.path.join(partial, file))
        spec.to_yaml(os.path.join(partial, SPEC_FILE))
        os.rename(partial, output)
    except OSError as error:
        raise InputError(
            f"{output}: cannot write the dataset: {error.strerror or error}; name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return FeatureSpec.from_yaml(os.path.join(output, SPEC_FILE))


def join(input_dir: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """The clicks, sorted by display, with what events and promoted content say of them.

    Returns:
      One row per click row, the raw ids under Outbrain's names, null where missing; and how many rows had no promoted
      content and no event.
    """
    path = os.path.join(input_dir, "clicks_train.csv")
    clicks = _read(path, dict.fromkeys((DISPLAY, "ad_id", LABEL), pa.int64()))
    for name in (DISPLAY, "ad_id", LABEL):
        if clicks[name].isna().any():
            raise InputError(
                f"{path}: {name} is missing on {clicks[name].isna().sum()} rows; every click row needs one"
            )
    if not clicks[LABEL].between(0, 1).all():
        raise InputError(f"{path}: {LABEL} must be 0 or 1, got {clicks[LABEL][~clicks[LABEL].between(0, 1)].iloc[0]}")
    per_display = clicks.groupby(DISPLAY)[LABEL].sum()
    if not (per_display == 1).all():
        display = per_display.index[per_display != 1][0]
        raise InputError(
            f"{path}: display {display} has {per_display[display]} clicks; in Outbrain's files each display has one, "
            "so the file is cut or is not one of them"
        )
    page_columns = {DISPLAY: pa.int64(), "document_id": pa.int64(), "platform": pa.int64(), "geo_location": pa.string()}
    events = _read(os.path.join(input_dir, "events.csv"), page_columns, key=DISPLAY)
    promoted_columns = dict.fromkeys(("ad_id", "document_id", "campaign_id", "advertiser_id"), pa.int64())
    promoted = _read(os.path.join(input_dir, "promoted_content.csv"), promoted_columns, key="ad_id")
    promoted = promoted.rename(columns={"document_id": "document_id_promo"})
    rows = clicks.sort_values(DISPLAY, kind="stable", ignore_index=True)
    has_event, has_promoted = np.isin(rows[DISPLAY], events[DISPLAY]), np.isin(rows["ad_id"], promoted["ad_id"])
    rows = rows.merge(events, on=DISPLAY, how="left").merge(promoted, on="ad_id", how="left")
    rows["geo_location_state"] = rows["geo_location"].str[:5]
    rows["geo_location_country"] = rows["geo_location"].str[:2]
    rows[PROMO_MISSING] = (~has_promoted).astype(np.float32)
    return rows, {
        "rows_without_promoted_content": int(np.count_nonzero(~has_promoted)),
        "rows_without_event": int(np.count_nonzero(~has_event)),
    }


def summary(spec: FeatureSpec) -> str:
    """What `prepare` did, for people."""
    facts = spec.metadata["outbrain_sample"]
    return "\n".join(
        [
            f"{spec.path}: {facts['rows']} rows of {facts['displays']} displays in",
            f"out: {facts['train_rows']} rows of {facts['train_displays']} displays to train, "
            f"{facts['test_rows']} rows of {facts['test_displays']} displays to evaluate",
            f"without promoted content: {facts['rows_without_promoted_content']} rows; "
            f"without event: {facts['rows_without_event']} rows",
            f"MAP@12 on the displays to evaluate: ads by click-through rate {facts['ctr_map_at_12']:.4f}, "
            f"chance {facts['chance_map_at_12']:.4f}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = command_line.Parser(
        prog="python -m data.outbrain.sample", description="Turns a sample of Outbrain clicks into parquet."
    )
    parser.add_argument("--input", required=True, metavar="DIR", help="folder of the raw CSV files")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write; must not exist or be empty")
    parser.add_argument(
        "--seed", type=int, default=DEFAULT_SEED, metavar="S", help="of the split (default: %(default)s)"
    )
    split = parser.add_mutually_exclusive_group()
    split.add_argument(
        "--test_fraction",
        type=float,
        metavar="F",
        help=f"share of the displays to evaluate on (default: {DEFAULT_TEST_FRACTION})",
    )
    split.add_argument(
        "--fold", type=_fold, metavar="K/N", help="evaluate on the K-th of N folds of displays, such as 1/3"
    )

    def work(options: argparse.Namespace) -> str:
        return summary(
            prepare(
                options.input,
                options.output,
                seed=options.seed,
                test_fraction=options.test_fraction,
                fold=options.fold,
            )
        )

    return command_line.run(parser, work, arguments)


def _fold(text: str) -> tuple[int, int]:
    """K/N of the command line."""
    number, slash, folds = text.partition("/")
    if not slash or not number.isdecimal() or not folds.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no fold; give two numbers such as 1/3")
    return int(number), int(folds)


def _split(test_fraction: float | None, fold: tuple[int, int] | None) -> dict[str, object]:
    """What decides which displays are held out, as the metadata have it; InputError if it cannot be."""
    if fold is None:
        share = DEFAULT_TEST_FRACTION if test_fraction is None else test_fraction
        if not 0.0 < share < 1.0:
            raise InputError(f"test_fraction={share}: give a share between 0 and 1, both excluded")
        return {"test_fraction": share}
    if test_fraction is not None:
        raise InputError(f"test_fraction={test_fraction} and a fold: each says what is held out; give one of them")
    number, folds = fold
    if folds < 2 or not 1 <= number <= folds:
        raise InputError(f"fold={number}/{folds}: give the number of one of at least two folds, such as 1/3")
    return {"fold": [number, folds]}


def _read(path: str, types: Mapping[str, pa.DataType], key: str | None = None) -> pd.DataFrame:
    """Columns of a raw file; integers with gaps come as float64. Values of `key` must be there and differ."""
    name = os.path.basename(path)
    options = pa.csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=["", "\\N"], strings_can_be_null=True
    )
    try:
        # One thread: only then do messages name the row.
        table = pa.csv.read_csv(path, read_options=pa.csv.ReadOptions(use_threads=False), convert_options=options)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; --input names the folder of Outbrain's CSV files") from None
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]}; expected the header of Outbrain's {name}") from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable {name}: {error}") from error
    if table.num_rows == 0:
        raise InputError(f"{path}: holds no rows; unpack or download it again")
    frame = table.to_pandas()
    if key is not None and (frame[key].isna().any() or frame[key].duplicated().any()):
        bad = frame[key][frame[key].isna() | frame[key].duplicated()].iloc[0]
        raise InputError(f"{path}: {key} {bad} is there twice or missing; each row needs a {key} of its own")
    return frame


def _features(train: pd.DataFrame, test: pd.DataFrame, seed: int) -> tuple[dict[str, pd.DataFrame], dict[str, int]]:
    """The columns to write by source, and the cardinality of each categorical one."""
    fold = (fractions(seeded_bits(train[DISPLAY].to_numpy(np.int64), seed, _FOLD_STREAM)) * FOLDS).astype(int)
    own = pd.concat([_history(train[fold != f], train[fold == f]) for f in np.unique(fold)]).sort_index()
    histories = {TRAIN: own, TEST: _history(train, test)}
    tables = {}
    vocabularies = {name: _vocabulary(train, name) for name in ONEHOT}
    for source, rows in ((TRAIN, train), (TEST, test)):
        tables[source] = pd.DataFrame(
            {
                LABEL: rows[LABEL].astype(np.int8),
                DISPLAY: rows[DISPLAY].astype(np.int64),
                **{name: rows[name].map(vocabularies[name]).fillna(0).where(rows[name].notna()) for name in ONEHOT},
                **histories[source],
                PROMO_MISSING: rows[PROMO_MISSING],
            }
        )
    return tables, {name: len(vocabulary) + 1 for name, vocabulary in vocabularies.items()}


def _vocabulary(rows: pd.DataFrame, name: str) -> dict:
    """Value -> id of the values on at least MIN_DISPLAYS displays."""
    displays = rows.groupby(name)[DISPLAY].nunique()
    return {value: number for number, value in enumerate(sorted(displays.index[displays >= MIN_DISPLAYS]), start=1)}


def _history(history: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Rates and counts of `rows` (their index is kept) as `history` has them."""
    mean_rate = float(history[LABEL].mean())
    columns = {}
    for name in RATED:
        seen = history.groupby(name)[LABEL].agg(["sum", "count"]).astype(np.float64)
        clicks, shows = (rows[name].map(seen[part]).fillna(0.0).astype(np.float64) for part in ("sum", "count"))
        rate = (clicks + SMOOTHING * mean_rate) / (shows + SMOOTHING)
        columns[f"{name}_ctr"] = np.log(rate / mean_rate).astype(np.float32)
        if name in COUNTED:
            columns[f"{name}_count"] = np.log1p(shows).astype(np.float32)
    return pd.DataFrame(columns, index=rows.index)


def _schema() -> pa.Schema:
    fields = {LABEL: pa.int8(), DISPLAY: pa.int64()}
    return pa.schema(fields | dict.fromkeys(ONEHOT, pa.int64()) | dict.fromkeys(NUMERICAL, pa.float32()))


def _spec(cardinalities: Mapping[str, int], metadata: Mapping[str, object]) -> FeatureSpec:
    features = {LABEL: Feature(LABEL, dtype="int8"), DISPLAY: Feature(DISPLAY, dtype="int64")}
    features |= {name: Feature(name, cardinality=cardinalities[name], dtype="int64") for name in ONEHOT}
    features |= {name: Feature(name, dtype="float32") for name in NUMERICAL}
    spec = FeatureSpec(features, onehot=ONEHOT, multihot=(), numerical=NUMERICAL, label=LABEL, display=DISPLAY)
    sources = {
        source: (Chunk(type="parquet", features=spec.columns(with_display=True), files=(file,)),)
        for source, file in _FILES.items()
    }
    return dataclasses.replace(spec, sources=sources, metadata={"outbrain_sample": dict(metadata)})


if __name__ == "__main__":
    sys.exit(main())
