"""What a user says of the columns of a table that is transcoded, and the contradictions in it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from data.column_inference import Decision, Flags, Role
from data.errors import InputError


@dataclasses.dataclass(frozen=True)
class ColumnOptions:
    """Names are those of the input's columns.

    Attributes:
      label: the column of zeros and ones.
      display_id: the column of the groups that MAP@12 ranks; None for none.
      categorical, multihot, numerical, ignore: columns whose role is given; the others' is inferred.
      vocabulary: categorical columns of whole numbers to be mapped by a vocabulary, even if they could stay.
      cardinality, hotness: given ones, which values may not exceed.
      min_count: times that a value must occur in training rows for an id of its own.
      log_standardize: whether numericals become standardised signed logarithms.
      fill: what gaps of numericals are filled with, in the columns' own units; None for the mean of the training rows
        (after the logarithm, where it is taken).
    """

    label: str
    display_id: str | None = None
    categorical: tuple[str, ...] = ()
    multihot: tuple[str, ...] = ()
    numerical: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    cardinality: Mapping[str, int] = dataclasses.field(default_factory=dict)
    hotness: Mapping[str, int] = dataclasses.field(default_factory=dict)
    min_count: int = 1
    log_standardize: bool = False
    fill: float | None = None

    def __post_init__(self):
        flag_of = {self.label: "--label"}
        given = {"--display_id": [] if self.display_id is None else [self.display_id]}
        given |= {f"--{name}": getattr(self, name) for name in ("categorical", "multihot", "numerical", "ignore")}
        for flag, names in given.items():
            for name in names:
                if name in flag_of:
                    raise InputError(f"column '{name}' is named by {flag_of[name]} and by {flag}; choose one")
                flag_of[name] = flag
        for flag, values in (("--cardinality", self.cardinality), ("--hotness", self.hotness)):
            for name, value in values.items():
                if value < 1:
                    raise InputError(f"{flag} {name}={value}: give at least 1")
        if self.min_count < 1:
            raise InputError(f"--min_count={self.min_count}: give at least 1")
        if self.fill is not None and not math.isfinite(self.fill):
            raise InputError(f"--fill={self.fill}: give a finite number, or mean")

    def flags(self, columns: Sequence[str], split: str | None, where: str) -> Flags:
        """For `column_inference.decide`. Raises InputError where a name is no column."""
        roles = dict.fromkeys(self.categorical, Role.CATEGORICAL)
        roles |= dict.fromkeys(self.multihot, Role.MULTIHOT)
        roles |= dict.fromkeys(self.numerical, Role.NUMERICAL)
        roles |= dict.fromkeys(self.ignore, Role.IGNORED)
        named = {
            "--label": [self.label],
            "--display_id": [] if self.display_id is None else [self.display_id],
            "the split": [] if split is None else [split],
            "a role": list(roles),
            "--vocabulary": self.vocabulary,
            "--cardinality": list(self.cardinality),
            "--hotness": list(self.hotness),
        }
        for flag, names in named.items():
            for name in names:
                if name not in columns:
                    raise InputError(f"{where}: has no column '{name}', which {flag} names; it has {list(columns)}")
        return Flags(self.label, self.display_id, split, roles)

    def check_decisions(self, decisions: Mapping[str, Decision]) -> None:
        """Raises InputError where an option does not suit the role that its column has, or nothing is left to learn."""
        ids = (Role.CATEGORICAL, Role.MULTIHOT)
        for flag, names, roles in (
            ("--cardinality", self.cardinality, ids),
            ("--vocabulary", self.vocabulary, ids),
            ("--hotness", self.hotness, (Role.MULTIHOT,)),
        ):
            for name in names:
                if decisions[name].role not in roles:
                    remedy = " or ".join(f"--{_FLAG[role]}" for role in roles)
                    raise InputError(
                        f"{flag} names '{name}', whose role is {decisions[name].role.value} ({decisions[name].rule}); "
                        f"name it in {remedy}, or drop {flag}"
                    )
        if not any(decision.role in (*ids, Role.NUMERICAL) for decision in decisions.values()):
            raise InputError(
                "no column is left to learn from: "
                + ", ".join(f"'{name}' {d.role.value} ({d.rule})" for name, d in decisions.items())
                + "; name some in --categorical, --multihot or --numerical"
            )


_FLAG = {Role.CATEGORICAL: "categorical", Role.MULTIHOT: "multihot"}
