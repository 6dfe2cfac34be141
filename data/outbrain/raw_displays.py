"""The displays of generated raw data, and the planted teacher that chooses the ad that is clicked.

A display shows distinct ads, most of them about the theme of its page. An ad's utility is a sum of

  ad, campaign, advertiser    an effect of each
  age         how fresh the promoted document is at that time: falls with log(1 + days since publication)
  topics      tf-idf cosine of the topics of the page and of the promoted document
  category    an effect of the promoted document's main category
  platform    an effect of advertiser and platform together, 0 on average over the platforms

and the click is drawn from softmax(utility) over the ads of the display (multinomial logit). What the files do not say
has no effect: ads without promoted content, documents without topics, categories or publication time.
"""

import dataclasses

import numpy as np

from data.click_ranking import chance_average_precision
from data.displays import MAX_ADS, draw_displays
from data.feature_spec import Feature, FeatureSpec
from data.outbrain.raw_world import DAYS, MILLISECONDS_PER_DAY, OLDEST_DAYS, PLATFORMS, TIME_ORIGIN, World, some

EVENTS_SHARE = 0.27
NO_PLATFORM = PLATFORMS
TARGET_MAP = 0.70

# Shares of the utility's variance within displays, as far as the terms are independent. Most of it lies in effects
# that many rows of the training days tell of.
_SHARES = {
    "ad": 0.22,
    "campaign": 0.22,
    "advertiser": 0.13,
    "age": 0.11,
    "topics": 0.20,
    "category": 0.07,
    "platform": 0.05,
}
_ON_THEME = 0.75
_PLATFORM_SHARES = np.array([0.38, 0.49, 0.13])
_NO_PLATFORM_SHARE = 0.001
_SAMPLE_ROWS = 40_000
# log(1 + days) of a document that is three weeks old; one of unknown age counts as that.
_AGE_MIDDLE = float(np.log(22.0))

# `draw_displays` is asked for sizes alone.
_SIZES_ONLY = FeatureSpec({"y": Feature("y"), "x": Feature("x", cardinality=1)}, ("x",), (), (), "y")


@dataclasses.dataclass(frozen=True)
class Events:
    """Consecutive displays in the order of time.

    Attributes:
      time: timestamps in milliseconds from the first day's start, ascending, (events,) int64.
      page: index of the page among the documents, (events,).
      platform: 0..PLATFORMS - 1, or NO_PLATFORM, (events,).
      user: (events,).
      logged: which of them clicks_train has, (events,) bool.
    """

    time: np.ndarray
    page: np.ndarray
    platform: np.ndarray
    user: np.ndarray
    logged: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shown:
    """The ads of some displays, those of one display side by side.

    Attributes:
      sizes: ads of each display, (displays,) int64.
      ads: indices of the ads, (rows,).
    """

    sizes: np.ndarray
    ads: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """Which places of a table of one line per display are taken, (displays, MAX_ADS) bool."""
        return np.arange(MAX_ADS) < self.sizes[:, None]


@dataclasses.dataclass(frozen=True)
class Choices:
    """What became of some displays.

    Attributes:
      clicks: 1 on one ad of each display, else 0, (rows,) int8.
      teacher_average_precision: expected average precision of ranking a display's ads by utility, (displays,).
      chance_average_precision: the same for random order, (displays,).
    """

    clicks: np.ndarray
    teacher_average_precision: np.ndarray
    chance_average_precision: np.ndarray


def draw_events(
    world: World, rng: np.random.Generator, *, rows: int, span: tuple[float, float]
) -> tuple[Events, Shown]:
    """Displays of `rows` ads in total, evenly over `span` (shares of the whole time), with others in between.

    There are EVENTS_SHARE events per row, those that clicks_train lacks being spread evenly among those that it has.
    """
    sizes = draw_displays(_SIZES_ONLY, rng, rows).sizes
    displays = len(sizes)
    events = max(round(EVENTS_SHARE * rows), displays + 1)
    start, end = (share * DAYS * MILLISECONDS_PER_DAY for share in span)
    place = (np.arange(events) + rng.random(events)) / events
    platform = rng.choice(PLATFORMS, size=events, p=_PLATFORM_SHARES)
    platform[some(rng, events, _NO_PLATFORM_SHARE)] = NO_PLATFORM
    drawn = Events(
        time=np.minimum(start + place * (end - start), DAYS * MILLISECONDS_PER_DAY - 1).astype(np.int64),
        page=np.searchsorted(world.page_shares, rng.random(events), side="right"),
        platform=platform,
        user=rng.integers(world.users, size=events),
        logged=np.diff(np.arange(events + 1) * displays // events) == 1,
    )
    return drawn, _show_ads(world, rng, sizes, drawn.page[drawn.logged])


def _show_ads(world: World, rng: np.random.Generator, sizes: np.ndarray, page: np.ndarray) -> Shown:
    # Ads are sorted by theme, so those of a theme are a stretch of the cumulative popularity.
    bounds = np.concatenate([[0.0], world.ads.shares])[world.ads.theme_starts]
    theme = world.documents.theme[page]
    low, high = bounds[theme, None], bounds[theme + 1, None]
    on_theme = rng.random((len(sizes), MAX_ADS)) < _ON_THEME
    place = rng.random(on_theme.shape)
    place = np.where(on_theme, low + place * (high - low), place)
    last = len(world.ads.shares) - 1
    shown = Shown(sizes, np.empty(0))
    # Empty places hold different negative numbers, which equal nothing.
    table = np.where(shown.mask, np.minimum(np.searchsorted(world.ads.shares, place), last), -1 - np.arange(MAX_ADS))
    todo = np.arange(len(table))
    while len(todo):
        part = table[todo]
        order = np.argsort(part, axis=1, kind="stable")
        ascending = np.take_along_axis(part, order, axis=1)
        line, column = np.nonzero(ascending[:, 1:] == ascending[:, :-1])
        # An ad that is there already gives way to one of any theme: a small theme may have too few.
        part[line, order[line, column + 1]] = np.searchsorted(world.ads.shares, rng.random(len(line)))
        table[todo] = part
        todo = todo[np.unique(line)]
    return dataclasses.replace(shown, ads=table[shown.mask])


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A calibrated teacher.

    Attributes:
      effects: name -> effect of each ad, campaign, advertiser, main category (0 at the end, for none), and of each
        (advertiser, platform), NO_PLATFORM included.
      weights: term name -> weight, scale included.
      topics: `Tags.unit_vectors` of the documents' topics.
    """

    world: World
    effects: dict[str, np.ndarray]
    weights: dict[str, float]
    topics: np.ndarray

    def utility(self, events: Events, shown: Shown) -> np.ndarray:
        """Utility of each ad that the logged displays of `events` show, (rows,) float64."""
        total = np.zeros(len(shown.ads))
        for name, values in self._terms(events, shown).items():
            total += self.weights[name] * values
        return total

    def _terms(self, events: Events, shown: Shown) -> dict[str, np.ndarray]:
        world, ads = self.world, shown.ads
        documents = world.documents
        known = world.ads.has_content[ads]
        document, advertiser = world.ads.document[ads], world.ads.advertiser[ads]
        page, time, platform = (
            np.repeat(values[events.logged], shown.sizes) for values in (events.page, events.time, events.platform)
        )
        days = (time + TIME_ORIGIN - 1000 * documents.published[document]) / MILLISECONDS_PER_DAY
        freshness = _AGE_MIDDLE - np.log1p(np.clip(days, 0.0, OLDEST_DAYS))
        of_ad = {
            "campaign": self.effects["campaign"][world.ads.campaign[ads]],
            "advertiser": self.effects["advertiser"][advertiser],
            "age": freshness * documents.has_time[document],
            "topics": self._cosine(page, document),
            "category": self.effects["category"][documents.categories.index[document, 0]],
            "platform": self.effects["platform"][advertiser, platform],
        }
        return {"ad": self.effects["ad"][ads], **{name: values * known for name, values in of_ad.items()}}

    def _cosine(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        index = self.world.documents.topics.index
        slots = range(index.shape[1])
        total = np.zeros(len(one))
        columns = [(index[one, slot], self.topics[one, slot]) for slot in slots]
        for slot in slots:
            tag, weight = index[other, slot], self.topics[other, slot]
            for page_tag, page_weight in columns:
                total += (tag == page_tag) * (weight * page_weight)
        return total


def plant(world: World, rng: np.random.Generator) -> Teacher:
    """The teacher of a world; weights and scale are found on displays drawn for that."""
    categories = np.append(rng.standard_normal(len(world.documents.categories.vocabulary)), 0.0)
    platforms = rng.standard_normal((len(world.ads.advertiser_ids), PLATFORMS))
    platforms -= (platforms @ _PLATFORM_SHARES)[:, None]
    effects = {
        "ad": rng.standard_normal(len(world.ads.ids)),
        "campaign": rng.standard_normal(len(world.ads.campaign_ids)),
        "advertiser": rng.standard_normal(len(world.ads.advertiser_ids)),
        "category": categories,
        "platform": np.insert(platforms, NO_PLATFORM, 0.0, axis=1),
    }
    teacher = Teacher(world, effects, {}, world.documents.topics.unit_vectors())
    events, shown = draw_events(world, rng, rows=_SAMPLE_ROWS, span=(0.0, 1.0))
    weights = {}
    for name, values in teacher._terms(events, shown).items():
        starts = np.cumsum(shown.sizes) - shown.sizes
        within = values - np.repeat(np.add.reduceat(values, starts) / shown.sizes, shown.sizes)
        weights[name] = float(np.sqrt(_SHARES[name]) / max(within.std(), 1e-6))
    teacher = dataclasses.replace(teacher, weights=weights)
    raw = teacher.utility(events, shown)
    low, high = 0.0, 8.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        if _expected_average_precision(middle * raw, shown).mean() < TARGET_MAP:
            low = middle
        else:
            high = middle
    return dataclasses.replace(teacher, weights={name: middle * weight for name, weight in weights.items()})


def choose(utility: np.ndarray, shown: Shown, rng: np.random.Generator) -> Choices:
    """One click per display with probabilities softmax(utility), by the Gumbel-max method."""
    noisy = _table(utility + rng.gumbel(size=len(utility)), shown)
    clicks = np.zeros(len(utility), dtype=np.int8)
    clicks[np.cumsum(shown.sizes) - shown.sizes + noisy.argmax(axis=1)] = 1
    return Choices(
        clicks=clicks,
        teacher_average_precision=_expected_average_precision(utility, shown),
        chance_average_precision=chance_average_precision(shown.sizes),
    )


def _expected_average_precision(utility: np.ndarray, shown: Shown) -> np.ndarray:
    """Sum over the ads of P(click) / rank, (displays,); no display shows more ads than average precision at 12 sees."""
    descending = -np.sort(-_table(utility, shown), axis=1)
    odds = np.exp(descending - descending[:, :1])
    return (odds / np.arange(1, MAX_ADS + 1)).sum(axis=1) / odds.sum(axis=1)


def _table(values: np.ndarray, shown: Shown) -> np.ndarray:
    table = np.full(shown.mask.shape, -np.inf)
    table[shown.mask] = values
    return table
