"""What a generated dataset is made of, and the hash of it."""

import dataclasses
import hashlib
import json

from data.displays import MAX_ADS
from data.errors import InputError
from data.feature_spec import Feature, FeatureSpec
from data.id_draw import DEFAULT_DRAW, IdDraw
from data.outbrain.schema import outbrain_feature_spec
from data.synthetic_rows import row_bytes

# To be raised with every change of what is generated: cached datasets of other versions are not used.
GENERATOR_VERSION = 1
DEFAULT_VALID_FRACTION = 0.2
DEFAULT_ROWS_PER_GROUP = 16384
# Row groups of wide rows are shorter: the input reads whole ones, and shuffles several together.
MOST_BYTES_PER_GROUP = 2**23


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that determines the content of a dataset; `spec` has a display column."""

    rows: int
    seed: int
    spec: FeatureSpec
    valid_fraction: float
    rows_per_group: int
    draw: IdDraw

    @classmethod
    def checked(
        cls,
        rows: int,
        seed: int,
        spec: FeatureSpec | None,
        valid_fraction: float,
        rows_per_group: int | None,
        draw: IdDraw,
    ) -> "Recipe":
        """The recipe of arguments as `data.synthetic.generate` takes them.

        Raises:
          InputError: one is out of range.
        """
        if rows < 2 * MAX_ADS:
            raise InputError(f"rows={rows}: at least {2 * MAX_ADS} rows can be generated; ask for more")
        if seed < 0:
            raise InputError(f"seed={seed}: a seed is a non-negative integer; give another")
        if not 0.0 < valid_fraction < 1.0:
            raise InputError(f"valid_fraction={valid_fraction}: give a share between 0 and 1, both excluded")
        if rows_per_group is not None and rows_per_group < 1:
            raise InputError(f"rows_per_group={rows_per_group}: give at least 1")
        spec = _with_display(spec or outbrain_feature_spec())
        draw.check(spec)
        return cls(rows, seed, spec, valid_fraction, rows_per_group or default_rows_per_group(spec), draw)

    @property
    def key(self) -> str:
        """Hash of the content, 32 hexadecimal digits."""
        features = self.spec.features
        shape = [[name, features[name].cardinality, features[name].max_hotness] for name in self.spec.categorical]
        channels = self.spec.to_dict()["channel_spec"]
        content = [GENERATOR_VERSION, self.rows, self.seed, self.valid_fraction, self.rows_per_group, shape, channels]
        if self.uncommon_draw:
            content.append(self.uncommon_draw)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def uncommon_draw(self) -> dict[str, float | str]:
        """The settings of `draw` that are not the default ones."""
        common = dataclasses.asdict(DEFAULT_DRAW)
        return {name: value for name, value in dataclasses.asdict(self.draw).items() if value != common[name]}


def default_rows_per_group(spec: FeatureSpec) -> int:
    """Rows of a row group where none are asked for: less where rows are wide."""
    return max(1, min(DEFAULT_ROWS_PER_GROUP, MOST_BYTES_PER_GROUP // row_bytes(spec)))


def _with_display(spec: FeatureSpec) -> FeatureSpec:
    if spec.display is not None:
        return spec
    name = "display_id"
    while name in spec.features:
        name = f"_{name}"
    return dataclasses.replace(spec, features={**spec.features, name: Feature(name, dtype="int64")}, display=name)
