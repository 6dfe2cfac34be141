"""Columns of the Outbrain click dataset: names, table sizes, and which of them belong to the page.

A row is one ad shown in one display (an impression on a page). Columns of the page are the same for all ads of a
display; the others describe the ad, its promoted page, or the pair of both.
"""

from collections.abc import Mapping

from data.feature_spec import Chunk, Feature, FeatureSpec

LABEL = "clicked"
DISPLAY = "display_id"

ONEHOT_CARDINALITIES = {
    "document_id": 300000,
    "ad_id": 250000,
    "document_id_promo": 100000,
    "campaign_id": 5000,
    "source_id": 4000,
    "source_id_promo": 4000,
    "advertiser_id": 2500,
    "geo_location": 2500,
    "geo_location_state": 2000,
    "geo_location_country": 300,
    "publisher_id": 1000,
    "publisher_id_promo": 1000,
    "platform": 4,
}
MULTIHOT_CARDINALITIES = {"topic_id_list": 350, "entity_id_list": 10000, "category_id_list": 100}
MULTIHOT_HOTNESS = 3

NUMERICAL = (
    "document_id_document_id_promo_sim_categories",
    "document_id_document_id_promo_sim_topics",
    "document_id_document_id_promo_sim_entities",
    "document_id_promo_ctr",
    "publisher_id_promo_ctr",
    "source_id_promo_ctr",
    "ad_id_ctr",
    "advertiser_id_ctr",
    "campaign_id_ctr",
    "ad_id_count",
    "document_id_promo_count",
    "publish_time_days_since_published",
    "publish_time_promo_days_since_published",
)

PAGE_FEATURES = frozenset(
    {
        "document_id",
        "source_id",
        "publisher_id",
        "geo_location",
        "geo_location_state",
        "geo_location_country",
        "platform",
        "publish_time_days_since_published",
    }
)

# A location is `country>state>dma`: the state is a part of it, and the country a part of the state.
DERIVED_FROM = {"geo_location_state": "geo_location", "geo_location_country": "geo_location_state"}


def outbrain_feature_spec(sources: Mapping[str, tuple[Chunk, ...]] | None = None) -> FeatureSpec:
    """The feature specification of the preprocessed dataset.

    Args:
      sources: source name -> chunks, see `FeatureSpec.sources`; none for a specification without files.
    """
    features = {LABEL: Feature(LABEL, dtype="int8"), DISPLAY: Feature(DISPLAY, dtype="int64")}
    for name, cardinality in ONEHOT_CARDINALITIES.items():
        features[name] = Feature(name, cardinality=cardinality, dtype="int64")
    for name, cardinality in MULTIHOT_CARDINALITIES.items():
        features[name] = Feature(name, cardinality=cardinality, max_hotness=MULTIHOT_HOTNESS, dtype="int64")
    for name in NUMERICAL:
        features[name] = Feature(name, dtype="float32")
    return FeatureSpec(
        features=features,
        onehot=tuple(ONEHOT_CARDINALITIES),
        multihot=tuple(MULTIHOT_CARDINALITIES),
        numerical=NUMERICAL,
        label=LABEL,
        display=DISPLAY,
        sources=sources or {},
    )
