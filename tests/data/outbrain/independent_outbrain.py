"""The Outbrain dataset computed a second time, row by row, from its documented rules: for small data.

Nothing of data.outbrain is used, nor NVTabular, Arrow, numpy's integers or anybody's table joins.
"""

import csv
import datetime
import hashlib
import math
import os
from collections import Counter, defaultdict

import numpy as np

MISSING = -1
MS_PER_DAY = 86_400_000
EPOCH_MS = 1_465_876_799_998
LAST_TRAINING_DAY = 10
FOLDS = 10
HOTNESS = 3
SPLIT, FOLD, ORDER = 0, 1, 2

CARDINALITIES = {
    "document_id": 300_000,
    "ad_id": 250_000,
    "document_id_promo": 100_000,
    "campaign_id": 5_000,
    "source_id": 4_000,
    "source_id_promo": 4_000,
    "advertiser_id": 2_500,
    "geo_location": 2_500,
    "geo_location_state": 2_000,
    "geo_location_country": 300,
    "publisher_id": 1_000,
    "publisher_id_promo": 1_000,
    "topic_id_list": 350,
    "entity_id_list": 10_000,
    "category_id_list": 100,
}
THRESHOLDS = {
    "ad_id": 5,
    "document_id_promo": 5,
    "campaign_id": 10,
    "advertiser_id": 10,
    "source_id_promo": 10,
    "publisher_id_promo": 10,
}
TAGS = {"categories": "category_id", "topics": "topic_id", "entities": "entity_id"}
TABLES = ("clicks_train", "events", "promoted_content", "documents_meta", *(f"documents_{kind}" for kind in TAGS))


def mix(bits):
    """The finaliser of SplitMix64, variant 13, on a Python integer."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def step(value):
    return mix((value + 0x9E3779B97F4A7C15) % 2**64)


def seeded_bits(number, seed, stream):
    state = 0
    for part in (seed, stream, number):
        state = step((state + part) % 2**64)
    return state


def fraction(bits):
    return (bits >> 11) / 2**53


def text_bits(text):
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def hashed(value, cardinality):
    """Row of an embedding table for an integer or a text."""
    if value in (MISSING, ""):
        return MISSING
    return step(text_bits(value) if isinstance(value, str) else value) % cardinality


def read(folder, table):
    """Rows of a raw file as dictionaries of text, missing values as None; None where there is no file."""
    path = os.path.join(folder, f"{table}.csv")
    if not os.path.exists(path):
        return None
    with open(path, newline="", encoding="utf-8") as file:
        return [{k: None if v in ("", "\\N") else v for k, v in row.items()} for row in csv.DictReader(file)]


def integer(text):
    return MISSING if text is None else int(text)


def milliseconds(text):
    if text is None:
        return None
    since = datetime.datetime.fromisoformat(text) - datetime.datetime(1970, 1, 1)
    return (since.days * 86_400 + since.seconds) * 1000


class Outbrain:
    """The dataset of a folder.

    Attributes:
      train, valid: column -> values of the rows in order.
      report: the counts of report.json.
      split: display -> "early" (trained on), "held out" or "late".
      rows: the joined rows, dictionaries, in the order of clicks_train.csv.
    """

    def __init__(self, folder, *, seed=0, test_fraction=0.2, out_of_fold=True):
        self._raw = {table: read(folder, table) for table in TABLES}
        self._seed, self._test_fraction, self._out_of_fold = seed, test_fraction, out_of_fold
        self._documents = self._read_documents()
        self._tags = {kind: self._read_tags(kind) for kind in TAGS if self._raw[f"documents_{kind}"] is not None}
        self.rows = self._join()
        self.split = {row["display_id"]: self._side(row) for row in self.rows}
        training = [row for row in self.rows if self.split[row["display_id"]] == "early"]
        training.sort(key=lambda row: seeded_bits(row["display_id"], seed, ORDER))
        others = [row for row in self.rows if self.split[row["display_id"]] != "early"]
        others.sort(key=lambda row: row["display_id"])
        self._count(training)
        self._finish(training, others)
        self.train, self.valid = self._columns(training), self._columns(others)
        self.report = self._report(training, others)

    def _read_documents(self):
        if self._raw["documents_meta"] is None:
            return None
        return {
            int(row["document_id"]): {
                "source_id": integer(row["source_id"]),
                "publisher_id": integer(row["publisher_id"]),
                "publish_time": milliseconds(row["publish_time"]),
            }
            for row in self._raw["documents_meta"]
        }

    def _read_tags(self, kind):
        tags = defaultdict(list)
        for row in self._raw[f"documents_{kind}"]:
            tag = row[TAGS[kind]]
            tag = text_bits(tag) >> 1 if kind == "entities" else int(tag)
            tags[int(row["document_id"])].append((tag, float(row["confidence_level"])))
        return dict(tags)

    def _join(self):
        events = {int(row["display_id"]): row for row in self._raw["events"]}
        promoted = {int(row["ad_id"]): row for row in self._raw["promoted_content"]}
        rows = []
        for click in self._raw["clicks_train"]:
            display, ad = int(click["display_id"]), int(click["ad_id"])
            event, content = events.get(display, {}), promoted.get(ad, {})
            row = {
                "display_id": display,
                "ad_id": ad,
                "clicked": int(click["clicked"]),
                "timestamp": integer(event.get("timestamp")),
                "document_id": integer(event.get("document_id")),
                "platform": integer(event.get("platform")),
                "geo_location": event.get("geo_location") or "",
                "document_id_promo": integer(content.get("document_id")),
                "campaign_id": integer(content.get("campaign_id")),
                "advertiser_id": integer(content.get("advertiser_id")),
                "has_event": bool(event),
                "has_content": bool(content),
            }
            row["geo_location_state"], row["geo_location_country"] = row["geo_location"][:5], row["geo_location"][:2]
            if self._documents is not None:
                for suffix in ("", "_promo"):
                    known = self._documents.get(row[f"document_id{suffix}"], {})
                    row[f"has_meta{suffix}"] = bool(known)
                    row[f"source_id{suffix}"] = known.get("source_id", MISSING)
                    row[f"publisher_id{suffix}"] = known.get("publisher_id", MISSING)
                    row[f"days{suffix}"] = self._days(row["timestamp"], known.get("publish_time"))
            rows.append(row)
        return rows

    @staticmethod
    def _days(timestamp, published):
        if timestamp == MISSING or published is None:
            return None
        return min(max((timestamp + EPOCH_MS - published) // MS_PER_DAY, 0), 3650)

    def _side(self, row):
        if row["timestamp"] // MS_PER_DAY > LAST_TRAINING_DAY:
            return "late"
        held_out = fraction(seeded_bits(row["display_id"], self._seed, SPLIT)) < self._test_fraction
        return "held out" if held_out else "early"

    def fold(self, display):
        return int(fraction(seeded_bits(display, self._seed, FOLD)) * FOLDS)

    def _count(self, training):
        self.shows, self.clicks = defaultdict(Counter), defaultdict(Counter)
        for row in training:
            for name in self.rated:
                self.shows[name][row[name], self.fold(row["display_id"])] += 1
                self.clicks[name][row[name], self.fold(row["display_id"])] += row["clicked"]

    @property
    def rated(self):
        return [name for name in THRESHOLDS if name in self.rows[0]]

    def history(self, row, name):
        """Shows and clicks of the row's id, as far as the row may know them."""
        if row[name] == MISSING:
            return 0, 0
        own = self.fold(row["display_id"]) if self.split[row["display_id"]] == "early" and self._out_of_fold else None
        folds = [fold for fold in range(FOLDS) if fold != own]
        return tuple(sum(counts[name][row[name], fold] for fold in folds) for counts in (self.shows, self.clicks))

    def _finish(self, training, others):
        for row in training + others:
            for name in self.rated:
                shows, clicks = self.history(row, name)
                row[f"{name}_ctr"] = clicks / shows if shows >= THRESHOLDS[name] else 0.0
                row[f"{name}_shows"] = shows
            for kind in self._tags:
                pair = row["document_id"], row["document_id_promo"]
                row[f"document_id_document_id_promo_sim_{kind}"] = self.cosine(kind, *pair)
        standardised = {"ad_id_shows": "ad_id_count", "document_id_promo_shows": "document_id_promo_count"}
        if self._documents is not None:
            for suffix in ("", "_promo"):
                standardised[f"days{suffix}"] = f"publish_time{suffix}_days_since_published"
        for source, result in standardised.items():
            known = [math.log(1 + row[source]) for row in training if row[source] is not None]
            mean, deviation = np.mean(known), np.std(known, ddof=1)
            for row in training + others:
                value = row[source]
                row[result] = 0.0 if value is None else (math.log(1 + value) - mean) / deviation

    def cosine(self, kind, one, other):
        tags = self._tags[kind]
        vectors = []
        for document in (one, other):
            vector = Counter()
            for tag, confidence in tags.get(document, ()):
                vector[tag] += confidence * math.log(len(tags) / self._documents_that_have(kind)[tag])
            vectors.append(vector)
        lengths = [math.sqrt(sum(value**2 for value in vector.values())) for vector in vectors]
        if not all(lengths):
            return 0.0
        return sum(value * vectors[1][tag] for tag, value in vectors[0].items()) / lengths[0] / lengths[1]

    def _documents_that_have(self, kind):
        cache = self.__dict__.setdefault("_frequencies", {})
        if kind not in cache:
            cache[kind] = Counter(tag for tags in self._tags[kind].values() for tag in {tag for tag, _ in tags})
        return cache[kind]

    def _columns(self, rows):
        columns = {name: [row[name] for row in rows] for name in ("clicked", "display_id", "platform")}
        for name, cardinality in CARDINALITIES.items():
            if name in rows[0]:
                columns[name] = [hashed(row[name], cardinality) for row in rows]
        for kind, tags in self._tags.items():
            name = f"{TAGS[kind]}_list"
            columns[name] = []
            for row in rows:
                listed = sorted(tags.get(row["document_id_promo"], ()), key=lambda pair: (-pair[1], pair[0]))
                columns[name].append([hashed(tag, CARDINALITIES[name]) for tag, _ in listed[:HOTNESS]])
        numerical = ("_ctr", "_count", "_days_since_published", *(f"_sim_{kind}" for kind in TAGS))
        for name in rows[0]:
            if name.endswith(numerical):
                columns[name] = [row[name] for row in rows]
        return columns

    def _report(self, training, others):
        rows = self.rows
        missing = {
            "without_event": sum(not row["has_event"] for row in rows),
            "without_promoted_content": sum(not row["has_content"] for row in rows),
        }
        if self._documents is not None:
            missing["without_meta_of_page"] = sum(not row["has_meta"] for row in rows)
            missing["without_meta_of_ad"] = sum(not row["has_meta_promo"] for row in rows)
        for kind, tags in self._tags.items():
            without = sum(row["document_id_promo"] not in tags for row in rows)
            missing[f"without_{TAGS[kind].removesuffix('_id')}_of_ad"] = without
        unseen = {}
        for name in self.rated:
            seen = {row[name] for row in training} | {MISSING}
            unseen[name] = sum(row[name] not in seen for row in others)
        return {
            "rows_in": {name: len(rows) for name, rows in self._raw.items() if rows is not None},
            "missing_tables": [name for name, rows in self._raw.items() if rows is None],
            "displays": len(self.split),
            "train_displays": sum(side == "early" for side in self.split.values()),
            "train_rows": len(training),
            "test_rows": len(others),
            "missing_joins": missing,
            "unseen_in_training": unseen,
        }

    def teacher(self, folder):
        """Means over the displays to evaluate of what teacher.csv says."""
        figures = {int(row["display_id"]): row for row in read(folder, "teacher")}
        held_out = [figures[display] for display, side in self.split.items() if side != "early"]
        columns = ("teacher_average_precision", "chance_average_precision")
        means = [math.fsum(float(row[column]) for row in held_out) / len(held_out) for column in columns]
        return {"map_at_12": means[0], "chance_map_at_12": means[1], "displays": len(held_out)}
