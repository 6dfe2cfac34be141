"""The documents and ads of generated raw data: what the tables other than clicks and events say.

The world is a function of (rows, seed) and grows with the rows in Kaggle's proportions, so that an ad is shown about
150 times and the world fits in memory: some 20 bytes per row of clicks_train. Documents have one of `THEMES` themes,
from which most of their categories, topics and entities come; ads lead to promoted documents, these belong to
campaigns, and campaigns to advertisers. Every kind of missing value is there by a fixed share and at least once.
"""

import dataclasses

import numpy as np

from data.displays import MAX_ADS
from data.hashing import WEYL_STEP, mix

THEMES = 8
PLATFORMS = 3
MILLISECONDS_PER_DAY = 86_400_000
DAYS = 15
# Milliseconds of the Unix epoch at timestamp 0 of the events.
TIME_ORIGIN = 1_465_876_799_998
OLDEST_DAYS = 3650

# Rows of the tables per row of clicks_train, as in Kaggle's files.
META_SHARE, TOPICS_SHARE, ENTITIES_SHARE, CATEGORIES_SHARE, ADS_SHARE = 0.03, 0.13, 0.06, 0.06, 0.0064
_PAGES_SHARE, _DOCUMENTS_SHARE = 0.013, 0.031

# Shares of what is missing among pages and promoted documents, and among ads.
_NO_TAGS, _NO_META, _NO_SOURCE, _NO_PUBLISHER, _NO_TIME, _NO_CONTENT = 0.05, 0.04, 0.03, 0.06, 0.12, 0.02
# Shares of dates that lie after the events, and before OLDEST_DAYS.
_IN_FUTURE, _TOO_OLD = 0.015, 0.01

# The largest ids of Kaggle's files; ids are drawn below them, or below twice as many as are needed.
_LARGEST_ID = {"document": 2_999_334, "ad": 573_098, "campaign": 35_554, "advertiser": 4_532}
_LARGEST_ID |= {"source": 14_404, "publisher": 1_263}

_HOT_TAGS = 3
_HOT_SHARE = 0.7


@dataclasses.dataclass(frozen=True)
class Tags:
    """Categories, topics or entities of all documents.

    Attributes:
      index: which tags a document has, (documents, slots) int32, the main one first, -1 where there is none.
      confidence: (documents, slots) float64 in (0, 1].
      vocabulary: the id of each tag: (tags,) int64, or (tags, 2) uint64 for the 128 bits of an entity's.
    """

    index: np.ndarray
    confidence: np.ndarray
    vocabulary: np.ndarray

    def unit_vectors(self) -> np.ndarray:
        """tf-idf weights of each document, of Euclidean length 1 or all 0, (documents, slots) float64."""
        held = self.index >= 0
        frequency = np.bincount(self.index[held], minlength=len(self.vocabulary))
        inverse = np.log(held.any(axis=1).sum() / np.maximum(frequency, 1))
        weights = np.where(held, self.confidence * inverse[self.index], 0.0)
        length = np.sqrt((weights**2).sum(axis=1, keepdims=True))
        return np.divide(weights, length, out=np.zeros_like(weights), where=length > 0.0)


@dataclasses.dataclass(frozen=True)
class Documents:
    """All documents: first the pages, then the promoted ones, then those that no display shows.

    Attributes:
      ids: distinct document ids in no order, (documents,) int64.
      pages, promoted: how many there are of either.
      theme: (documents,) int64.
      has_meta: whether documents_meta has a row, (documents,) bool.
      source_id, publisher_id: (documents,) int64, -1 where missing.
      published: seconds of the Unix epoch, (documents,) int64, and `has_time`: whether that is known (it never is
        without a row of documents_meta).
    """

    ids: np.ndarray
    pages: int
    promoted: int
    theme: np.ndarray
    has_meta: np.ndarray
    source_id: np.ndarray
    publisher_id: np.ndarray
    published: np.ndarray
    has_time: np.ndarray
    categories: Tags
    topics: Tags
    entities: Tags


@dataclasses.dataclass(frozen=True)
class Ads:
    """All ads, sorted by the theme of the document that they lead to.

    Attributes:
      ids: distinct ad ids in no order, (ads,) int64.
      document: index of the promoted document in `Documents`, (ads,).
      campaign, advertiser: indices, (ads,), and `campaign_ids`, `advertiser_ids`: the ids of each.
      has_content: whether promoted_content has a row, (ads,) bool.
      shares: cumulative popularity, (ads,), 1 at the end.
      theme_starts: first ad of each theme and the number of ads at the end, (THEMES + 1,); no theme is without ads.
    """

    ids: np.ndarray
    document: np.ndarray
    campaign: np.ndarray
    advertiser: np.ndarray
    campaign_ids: np.ndarray
    advertiser_ids: np.ndarray
    has_content: np.ndarray
    shares: np.ndarray
    theme_starts: np.ndarray


@dataclasses.dataclass(frozen=True)
class World:
    """What does not change from display to display.

    Attributes:
      page_shares: cumulative popularity of the pages, (pages,), 1 at the end.
      users: how many there are, and `user_salt`: a uint64 from which their uuids follow.
    """

    documents: Documents
    ads: Ads
    page_shares: np.ndarray
    users: int
    user_salt: np.uint64


def draw_world(rng: np.random.Generator, rows: int) -> World:
    """The world of a dataset of `rows` rows of clicks_train."""
    ads = max(4 * MAX_ADS, round(ADS_SHARE / (1.0 - _NO_CONTENT) * rows))
    documents = _draw_documents(rng, rows, promoted=max(2 * THEMES, ads // 3))
    page_shares = _cumulative((np.arange(documents.pages) + 10.0) ** -0.8)
    return World(
        documents=documents,
        ads=_draw_ads(rng, ads, documents),
        page_shares=page_shares,
        users=rows // 4,
        user_salt=rng.integers(2**64, dtype=np.uint64),
    )


def some(rng: np.random.Generator, size: int, share: float) -> np.ndarray:
    """A random mask of `share` of `size` places, rounded up, so that it is never empty, (size,) bool."""
    mask = np.zeros(size, dtype=bool)
    mask[rng.choice(size, min(size, int(np.ceil(share * size))), replace=False)] = True
    return mask


def _draw_documents(rng: np.random.Generator, rows: int, promoted: int) -> Documents:
    pages = max(4 * THEMES, round(_PAGES_SHARE * rows))
    others = max(4 * THEMES, round(_DOCUMENTS_SHARE * rows) - pages - promoted)
    count = pages + promoted + others
    groups = (pages, promoted, others)
    # Each theme among the promoted documents, so that there are ads for it.
    theme = np.concatenate([rng.permutation(np.arange(size) % THEMES) for size in groups])
    has_meta = _covered(rng, groups, META_SHARE * rows, _NO_META)

    # The last share of the sources has no publisher.
    sources = max(20, count // 200)
    publishers = max(5, sources // 10)
    source = rng.integers(sources, size=count)
    publisher = np.where(rng.random(sources) < 0.9, rng.integers(publishers, size=sources), -1)[source]
    publisher[some(rng, count, _NO_PUBLISHER)] = -1
    source_id = np.where(some(rng, count, _NO_SOURCE), -1, _draw_ids(rng, "source", sources)[source])
    publisher_id = np.where(publisher < 0, -1, _draw_ids(rng, "publisher", publishers)[publisher])

    # Pages are news, promoted documents older.
    age = np.exp(rng.uniform(np.log(0.5), np.log(900.0), count))
    age[:pages] = rng.exponential(20.0, pages)
    has_time = has_meta & ~some(rng, count, _NO_TIME)
    for first, size in ((0, pages), (pages, promoted)):
        known = first + np.flatnonzero(has_time[first : first + size])
        age[known[some(rng, len(known), _TOO_OLD)]] = 1.5 * OLDEST_DAYS
        age[known[some(rng, len(known), _IN_FUTURE)]] = -20.0
    published = (TIME_ORIGIN // 1000 - age * 86400.0).astype(np.int64)
    midnight = rng.random(count) < 0.7
    published[midnight] -= published[midnight] % 86400

    return Documents(
        ids=_draw_ids(rng, "document", count),
        pages=pages,
        promoted=promoted,
        theme=theme,
        has_meta=has_meta,
        source_id=source_id,
        publisher_id=publisher_id,
        published=published,
        has_time=has_time,
        categories=_draw_categories(rng, groups, theme, CATEGORIES_SHARE * rows),
        topics=_draw_topics(rng, groups, theme, TOPICS_SHARE * rows),
        entities=_draw_entities(rng, groups, theme, ENTITIES_SHARE * rows),
    )


def _draw_ads(rng: np.random.Generator, count: int, documents: Documents) -> Ads:
    campaigns, advertisers = max(6, count // 12), max(4, count // 40)
    document = _parents(rng, count, documents.promoted)
    document = document[np.argsort(documents.theme[documents.pages :][document], kind="stable")]
    campaign = _parents(rng, documents.promoted, campaigns)[document]
    document = document + documents.pages
    return Ads(
        ids=_draw_ids(rng, "ad", count),
        document=document,
        campaign=campaign,
        advertiser=_parents(rng, campaigns, advertisers)[campaign],
        campaign_ids=_draw_ids(rng, "campaign", campaigns),
        advertiser_ids=_draw_ids(rng, "advertiser", advertisers),
        has_content=~some(rng, count, _NO_CONTENT),
        # A mild power law: the most shown ad has 8 times the displays of the least shown.
        shares=_cumulative(rng.permutation((np.arange(count) + 0.05 * count) ** -0.7)),
        theme_starts=np.searchsorted(documents.theme[document], np.arange(THEMES + 1)),
    )


def _draw_categories(rng: np.random.Generator, groups: tuple[int, ...], theme: np.ndarray, rows: float) -> Tags:
    index = _draw_tags(rng, groups, theme, rows, tags=96, fewest=1, most=4)
    # Stick breaking: the main category has most of the confidence.
    stick = rng.uniform(0.6, 0.95, index.shape)
    confidence = stick * np.cumprod(np.insert(1.0 - stick, 0, 1.0, axis=1), axis=1)[:, :-1]
    return Tags(index, np.round(confidence, 4), 1000 + 11 * np.arange(96))


def _draw_topics(rng: np.random.Generator, groups: tuple[int, ...], theme: np.ndarray, rows: float) -> Tags:
    index = _draw_tags(rng, groups, theme, rows, tags=296, fewest=4, most=9)
    stick = rng.uniform(0.1, 0.35, index.shape)
    confidence = stick * np.cumprod(np.insert(1.0 - stick, 0, 1.0, axis=1), axis=1)[:, :-1]
    return Tags(index, confidence, np.arange(296))


def _draw_entities(rng: np.random.Generator, groups: tuple[int, ...], theme: np.ndarray, rows: float) -> Tags:
    tags = THEMES * max(20, int(rows) // 20)
    index = _draw_tags(rng, groups, theme, rows, tags=tags, fewest=2, most=4)
    confidence = np.minimum(rng.uniform(0.2, 1.05, index.shape), 1.0)
    words = rng.integers(2**64, dtype=np.uint64) + np.arange(1, 2 * tags + 1, dtype=np.uint64) * WEYL_STEP
    return Tags(index, confidence, mix(words).reshape(tags, 2))


def _draw_tags(
    rng: np.random.Generator,
    groups: tuple[int, ...],
    theme: np.ndarray,
    rows: float,
    *,
    tags: int,
    fewest: int,
    most: int,
) -> np.ndarray:
    """`Tags.index` with about `rows` tags in all; tags theme, theme + THEMES, ... are those of a theme, hot ones first.

    A part of them comes from the theme's _HOT_TAGS first tags, so that documents of one theme share some.
    """
    shape = (len(theme), most)
    index = rng.integers(tags, size=shape)
    own = rng.integers(tags // THEMES, size=shape) * THEMES + theme[:, None]
    hot = rng.integers(_HOT_TAGS, size=shape) * THEMES + theme[:, None]
    kind = rng.random(shape)
    index = np.where(kind < _HOT_SHARE, hot, np.where(kind < 0.9, own, index)).astype(np.int32)
    index[np.arange(most) >= rng.integers(fewest, most + 1, len(theme))[:, None]] = -1
    for slot in range(1, most):
        index[(index[:, :slot] == index[:, slot : slot + 1]).any(axis=1), slot] = -1
    per_document = (index >= 0).sum() / len(theme)
    index[~_covered(rng, groups, rows / per_document, _NO_TAGS)] = -1
    return index


def _covered(rng: np.random.Generator, groups: tuple[int, ...], wanted: float, missing: float) -> np.ndarray:
    """Which documents a table knows: all but `missing` of pages and promoted ones, and others up to `wanted`."""
    pages, promoted, others = groups
    shown = [~some(rng, pages, missing), ~some(rng, promoted, missing)]
    left = round(wanted) - sum(int(mask.sum()) for mask in shown)
    rest = np.zeros(others, dtype=bool)
    rest[rng.permutation(others)[: max(0, left)]] = True
    return np.concatenate([*shown, rest])


def _parents(rng: np.random.Generator, children: int, parents: int) -> np.ndarray:
    """The parent of each child, at random, none without a child, (children,)."""
    return rng.permutation(np.concatenate([np.arange(parents), rng.integers(parents, size=children - parents)]))


def _draw_ids(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """`count` distinct positive ids with gaps, in random order, (count,) int64."""
    return 1 + rng.choice(max(_LARGEST_ID[kind], 2 * count), count, replace=False)


def _cumulative(weights: np.ndarray) -> np.ndarray:
    total = np.cumsum(weights)
    return total / total[-1]
