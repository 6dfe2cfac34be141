"""The NVTabular workflow: from joined rows (`data.outbrain.join`) to the columns that a model reads.

Everything that is derived is derived here: a saved workflow (`nvtabular.Workflow.load`) turns joined rows into the
rows of the dataset anywhere.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from data.feature_spec import FeatureSpec
from data.outbrain import raw_tables, schema
from data.outbrain.join import EPOCH_MS, FOLDS, LISTS, MS_PER_DAY, JoinedRows
from data.outbrain.operators import ClickHistory, HashIds, TagSimilarity
from data.outbrain.similarity import TagVectors

# nvtabular itself is imported after operators, which silences what its first import has to say.
import dask.dataframe  # isort: skip
import nvtabular  # isort: skip
from merlin.core.dispatch import HAS_GPU, get_lib  # isort: skip
from merlin.io import Dataset  # isort: skip
from merlin.schema import ColumnSchema, Schema  # isort: skip
from nvtabular import ops  # isort: skip

MAX_DAYS = 3650
# Shows below which a click-through rate is 0.
CTR_THRESHOLDS = {
    "document_id_promo": 5,
    "publisher_id_promo": 10,
    "source_id_promo": 10,
    "ad_id": 5,
    "advertiser_id": 10,
    "campaign_id": 10,
}
_COUNTED = ("ad_id", "document_id_promo")
_DATES = ("publish_time", "publish_time_promo")
_SIMILARITY = "document_id_document_id_promo_sim_{}"


def features(tables: Sequence[str]) -> FeatureSpec:
    """Outbrain's specification, without the features of raw tables that are not there."""
    spec = schema.outbrain_feature_spec()
    gone = set()
    if raw_tables.META not in tables:
        gone |= {name for name in spec.features if name.startswith(("source_id", "publisher_id", "publish_time"))}
    for table, (column, _) in LISTS.items():
        if table not in tables:
            gone |= {column, _SIMILARITY.format(table.removeprefix("documents_"))}
    kept = {name: feature for name, feature in spec.features.items() if name not in gone}
    channels = {
        channel: tuple(name for name in getattr(spec, channel) if name in kept)
        for channel in ("onehot", "multihot", "numerical")
    }
    return FeatureSpec(features=kept, label=spec.label, display=spec.display, **channels)


def build(
    tables: Sequence[str],
    vectors: Mapping[str, TagVectors],
    read: Callable[[int], pa.Table],
    parts: Sequence[int],
    *,
    out_of_fold: bool,
) -> nvtabular.Workflow:
    """The workflow, fitted to the training rows part by part.

    Args:
      tables: the raw tables there are.
      vectors: raw table of tags -> vectors of its documents.
      read: `read(part, columns=None)` gives joined training rows; run in dask's processes where there are any.
      parts: numbers of the parts that have rows, at least one.
      out_of_fold: see ClickHistory.
    """
    spec = features(tables)
    rated = {name: shows for name, shows in CTR_THRESHOLDS.items() if f"{name}_ctr" in spec.numerical}
    history = ClickHistory(rated, folds=FOLDS, out_of_fold=out_of_fold)
    normalize_counts, normalize_days = ops.Normalize(out_dtype="float32"), ops.Normalize(out_dtype="float32")

    def fitted() -> nvtabular.WorkflowNode:
        seen = [*rated, "fold", "clicked"] >> history
        columns = seen[[f"{name}_ctr" for name in rated]]
        columns += seen[[f"{name}_count" for name in _COUNTED]] >> ops.LambdaOp(log_of_one_more) >> normalize_counts
        if raw_tables.META in tables:
            columns += (
                list(_DATES)
                >> ops.LambdaOp(days_since_published, dependency=["timestamp"])
                >> ops.Clip(min_value=0, max_value=MAX_DAYS)
                >> ops.LambdaOp(log_of_one_more)
                >> normalize_days
                # The mean of the training rows that have a date.
                >> ops.FillMissing(0)
                >> ops.Rename(postfix="_days_since_published")
            )
        return columns

    # By itself first, on these columns alone: as pandas has them, the lists would take most of the time and memory.
    needed = [*rated, "fold", "clicked", *((*_DATES, "timestamp") if raw_tables.META in tables else ())]
    with _cpu_mode_unsaid():
        nvtabular.Workflow(fitted()).fit(_dataset(read, parts, needed))
    # The same operators, fitted now, among all others.
    passed = nvtabular.ColumnSelector([spec.display, spec.label])
    workflow = nvtabular.Workflow(passed + fitted() + _looked_up(spec, vectors))
    return workflow.fit_schema(_input_schema(read(parts[0]).schema))


def _input_schema(joined: pa.Schema) -> Schema:
    """Merlin's schema of the joined rows. Merlin's own way of finding it fails where the first lists are empty."""
    columns = []
    for field in joined:
        is_list = pa.types.is_list(field.type)
        dtype = (field.type.value_type if is_list else field.type).to_pandas_dtype()
        columns.append(ColumnSchema(field.name, dtype=dtype, is_list=is_list, is_ragged=is_list))
    return Schema(columns)


@contextlib.contextmanager
def _cpu_mode_unsaid() -> Iterator[None]:
    """Without Merlin's warning that datasets without a GPU are an experiment: tests compare every value."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Initializing an NVTabular Dataset in CPU mode")
        yield


def _looked_up(spec: FeatureSpec, vectors: Mapping[str, TagVectors]) -> nvtabular.WorkflowNode:
    """The columns that training rows have no say in: ids and similarities."""
    cardinalities = {name: spec.features[name].cardinality for name in spec.categorical}
    integers = [name for name in spec.onehot if not name.startswith("geo_location") and name != "platform"]
    # The platforms 1, 2 and 3 are rows of their table as they are: hashed into 4 rows, two of them could meet.
    columns = (integers >> HashIds(cardinalities)) + ["platform"]
    columns += ["geo_location"] >> HashIds(cardinalities)
    for name, place in (("geo_location_state", state), ("geo_location_country", country)):
        columns += ["geo_location"] >> ops.LambdaOp(place) >> ops.Rename(name=name) >> HashIds(cardinalities)
    if spec.multihot:
        columns += list(spec.multihot) >> ops.ListSlice(schema.MULTIHOT_HOTNESS) >> HashIds(cardinalities)
    if vectors:
        named = {_SIMILARITY.format(name.removeprefix("documents_")): vectors[name] for name in vectors}
        columns += ["document_id", "document_id_promo"] >> TagSimilarity(named)
    return columns


def days_since_published(published: Any, rows: Any) -> Any:
    """Whole days, float64, from a publication (ms of the Unix epoch) to the display; NaN where one is not known."""
    days = (rows["timestamp"].astype("float64") + EPOCH_MS - published.astype("float64")) // MS_PER_DAY
    return days.where(rows["timestamp"] >= 0, math.nan)


def log_of_one_more(values: Any) -> Any:
    """ln(1 + value), float64: NVTabular's LogOp gives float32, whose sums in Normalize would show the parts' sizes."""
    return np.log1p(values.astype("float64"))


def country(locations: Any) -> Any:
    """The country of locations `country>state>dma`: two letters."""
    return locations.str.slice(0, 2)


def state(locations: Any) -> Any:
    """Country and state: five characters, fewer where there is no state."""
    return locations.str.slice(0, 5)


def to_frame(table: pa.Table) -> Any:
    """Joined rows as the workflow takes them: cuDF's frame where there is a GPU, else pandas'."""
    return get_lib().DataFrame.from_arrow(table) if HAS_GPU else table.to_pandas()


def to_table(frame: Any, spec: FeatureSpec) -> pa.Table:
    """A workflow's result as Arrow's table with the columns and dtypes of `spec`."""
    table = pa.Table.from_pandas(frame, preserve_index=False) if not HAS_GPU else frame.to_arrow()
    fields = []
    for name in (spec.label, spec.display, *spec.categorical, *spec.numerical):
        dtype = pa.type_for_alias(spec.features[name].dtype)
        fields.append(pa.field(name, pa.list_(dtype) if name in spec.multihot else dtype))
    return table.select([field.name for field in fields]).cast(pa.schema(fields))


def shown_of(workflow: nvtabular.Workflow) -> ClickHistory:
    """The fitted operator that knows which ids the training rows have."""
    (node,) = workflow.graph.get_nodes_by_op_type([workflow.output_node], ClickHistory)
    return node.op


def _dataset(read: Callable[..., pa.Table], parts: Sequence[int], columns: Sequence[str] | None) -> Dataset:
    def frame(part: int) -> Any:
        return to_frame(read(part, columns=columns))

    meta = to_frame(read(parts[0], columns=columns).slice(0, 0))
    return Dataset(dask.dataframe.from_map(frame, parts, meta=meta, enforce_metadata=False), cpu=not HAS_GPU)


def transform_part(path: str, joined: JoinedRows, source: str, part: int) -> tuple[pa.Table, dict[str, int]]:
    """The finished rows of a part of `source`.

    Args:
      path: of the saved workflow, which each process loads once.

    Returns:
      The rows, and for each rated id column how many rows have an id that no training row has.
    """
    workflow = _loaded(path)
    rows = joined.read(source, part)
    history = shown_of(workflow)
    unseen = {}
    for name in history.thresholds:
        ids = rows[name].to_numpy()
        unseen[name] = int(((history.places(name, ids) == len(history.ids[name])) & (ids >= 0)).sum())
    return to_table(workflow.transform(to_frame(rows)), features(joined.plan.tables)), unseen


@functools.lru_cache(maxsize=1)
def _loaded(path: str) -> nvtabular.Workflow:
    return nvtabular.Workflow.load(path)
