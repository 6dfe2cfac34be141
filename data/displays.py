"""Draws the features of generated displays: how many ads each shows, and what is known of every ad.

The ads of a display are independent of each other and of their page. Columns of the page (`page_features`) are equal
for all ads of a display.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from data.feature_spec import FeatureSpec
from data.id_draw import DEFAULT_DRAW, IdDraw
from data.outbrain import schema

MIN_ADS = 2
MAX_ADS = 12

# Frequencies of displays with 2, 3, ... 12 ads; their mean, 5.2, is about that of the Outbrain clicks.
_SIZE_WEIGHTS = np.array([0.12, 0.14, 0.20, 0.12, 0.18, 0.06, 0.10, 0.03, 0.02, 0.02, 0.01])


class IdLists(NamedTuple):
    """A multi-hot column: the ids of all rows one after the other, and how many belong to each row, both int64."""

    ids: np.ndarray
    lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Displays:
    """Features of some displays, ads of a display side by side.

    Attributes:
      sizes: ads of each display, (displays,), int64.
      columns: feature name -> (rows,) int64 ids, (rows,) float32 numericals, or IdLists.
    """

    sizes: np.ndarray
    columns: dict[str, np.ndarray | IdLists]

    @property
    def starts(self) -> np.ndarray:
        """First row of each display, (displays,)."""
        return np.cumsum(self.sizes) - self.sizes

    def padded(self, values: np.ndarray, fill: float) -> np.ndarray:
        """Row values as one line per display, (displays, MAX_ADS), `fill` behind the last ad."""
        shown = np.arange(MAX_ADS) < self.sizes[:, None]
        table = np.full(shown.shape, fill, dtype=values.dtype)
        table[shown] = values
        return table


def page_features(spec: FeatureSpec) -> frozenset[str]:
    """Features that are equal for all ads of a display: those that Outbrain's page has, found by their names.

    None if the specification would have no other feature: something must tell the ads of a display apart.
    """
    names = frozenset(spec.categorical + spec.numerical)
    page = names & schema.PAGE_FEATURES
    return page if page != names else frozenset()


def parent_feature(spec: FeatureSpec, name: str) -> str | None:
    """The feature of `spec` that determines one-hot feature `name` (a location its state), or None."""
    parent = schema.DERIVED_FROM.get(name)
    return parent if parent in spec.onehot else None


def draw_displays(spec: FeatureSpec, rng: np.random.Generator, rows: int, draw: IdDraw = DEFAULT_DRAW) -> Displays:
    """Draws displays of `rows` ads in total; `rows` is at least MIN_ADS.

    Ids and the lengths of multi-hot rows follow `draw`, an id with a parent is its parent's modulo the own cardinality,
    and numericals are standard normal.
    """
    sizes = _draw_sizes(rng, rows)
    page = page_features(spec)
    columns: dict[str, np.ndarray | IdLists] = {}

    def spread(name: str, values: np.ndarray) -> np.ndarray:
        return np.repeat(values, sizes) if name in page else values

    def count(name: str) -> int:
        return len(sizes) if name in page else rows

    for name in spec.onehot:
        if parent_feature(spec, name) is None:
            columns[name] = spread(name, draw.ids(rng, spec.features[name].cardinality, count(name)))
    for name in spec.multihot:
        columns[name] = IdLists(*draw.id_lists(rng, spec.features[name], rows))
    for name in spec.numerical:
        columns[name] = spread(name, rng.standard_normal(count(name), dtype=np.float32))
    for name in spec.onehot:
        _derive(spec, name, columns)
    return Displays(sizes, columns)


def _derive(spec: FeatureSpec, name: str, columns: dict[str, np.ndarray | IdLists]) -> np.ndarray:
    if name not in columns:
        columns[name] = _derive(spec, parent_feature(spec, name), columns) % spec.features[name].cardinality
    return columns[name]


def _draw_sizes(rng: np.random.Generator, rows: int) -> np.ndarray:
    sizes = rng.choice(np.arange(MIN_ADS, MAX_ADS + 1), size=rows // MIN_ADS + 1, p=_SIZE_WEIGHTS / _SIZE_WEIGHTS.sum())
    ends = np.cumsum(sizes)
    last = int(np.searchsorted(ends, rows))
    sizes = sizes[: last + 1]
    sizes[-1] -= ends[last] - rows
    if sizes[-1] < MIN_ADS:
        # One ad is left over: it joins the display before, which gives one away instead where it is full.
        if sizes[-2] < MAX_ADS:
            sizes = np.append(sizes[:-2], sizes[-2] + 1)
        else:
            sizes[-2:] = MAX_ADS - 1, MIN_ADS
    return sizes
