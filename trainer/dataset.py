"""Where a configuration says that the rows are."""

from collections.abc import Mapping

from data import filesystem, synthetic
from data.errors import InputError
from data.feature_spec import FeatureSpec
from data.flat_spec import flat_spec
from data.id_draw import DEFAULT_DRAW, IdDraw
from data.synthetic_recipe import DEFAULT_VALID_FRACTION, Recipe
from trainer.config import DataConfig, RunConfig

# Of generated tables without names, as in the Criteo data.
DEFAULT_NUM_NUMERICAL = 13


def open_spec(config: RunConfig) -> FeatureSpec:
    """The specification of the dataset that a configuration names; generates the data if that is asked for.

    Raises:
      InputError: there is no such dataset; the message names the ways to get one.
    """
    data = config.data
    if data.dataset_type == "synthetic":
        return FeatureSpec.from_yaml(
            synthetic.cached_dataset(
                rows=data.synthetic_rows,
                seed=data.synthetic_seed,
                spec=_features_to_generate(data),
                cache_dir=data.synthetic_cache_dir,
                draw=id_draw(data),
            )
        )
    path = filesystem.join(data.dataset_path, data.fspec_file)
    if not filesystem.exists(path):
        raise InputError(
            f"{path}: no dataset there. Ways to get one: --dataset_path to a folder of parquet files with a feature "
            "specification; 'bash scripts/preproc.sh --data_path ORIG --metadata_path DIR' from Outbrain's files; "
            "'python -m data.transcode --input PATH --output DIR --label NAME' from files of your own; 'python -m "
            "data.synthetic --output DIR --rows N --seed S' to generate one; --dataset_type=synthetic to generate and "
            "cache one now"
        )
    spec = FeatureSpec.from_yaml(path)
    teacher = spec.metadata.get("teacher")
    if teacher is not None:
        for name in ("map_at_12", "chance_map_at_12", "auc"):
            value = teacher.get(name) if isinstance(teacher, Mapping) else None
            if name == "auc" and value is None and isinstance(teacher, Mapping):
                continue  # the teacher of generated raw files scores displays, not rows
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(
                    f"{path}: metadata.teacher.{name} must be a number, got {value!r}: data.synthetic writes "
                    "metadata.teacher; take it out of the specification of other data"
                )
    return spec


def planned_spec(config: RunConfig) -> FeatureSpec:
    """The features of the dataset that a configuration names. What would be generated is not, and has no files.

    Raises:
      InputError: as for `open_spec`.
    """
    data = config.data
    if data.dataset_type != "synthetic":
        return open_spec(config)
    features = _features_to_generate(data)
    recipe = Recipe.checked(
        data.synthetic_rows, data.synthetic_seed, features, DEFAULT_VALID_FRACTION, None, id_draw(data)
    )
    return recipe.spec


def _features_to_generate(data: DataConfig) -> FeatureSpec | None:
    """The features that the flags describe; None for Outbrain's."""
    if data.synthetic_feature_spec is not None:
        return FeatureSpec.from_yaml(data.synthetic_feature_spec)
    tables, numericals = data.synthetic_dataset_cardinalities, data.synthetic_dataset_num_numerical_features
    if tables is None:
        return None
    hotness = data.synthetic_dataset_hotness or (1,)
    return flat_spec(tables, hotness, DEFAULT_NUM_NUMERICAL if numericals is None else numericals)


def id_draw(data: DataConfig) -> IdDraw:
    """The law of generated ids that a configuration states."""
    exponent = data.synthetic_dataset_power_law_exponent
    return IdDraw(DEFAULT_DRAW.exponent if exponent is None else exponent, data.synthetic_dataset_pooling)
