"""The command line: the only place that knows absl's flags."""

import dataclasses
import re
from collections.abc import Sequence

from absl import flags

from data.errors import InputError
from trainer import config as configuration
from trainer.config import RunConfig


class HelpRequested(Exception):
    """--help was given; the argument is the text."""


def _define(values: flags.FlagValues) -> None:
    """Defines every flag, its default taken from the configuration's."""
    defaults = RunConfig().flat()

    def text(name: str, description: str) -> None:
        flags.DEFINE_string(name, defaults[name], description, flag_values=values)

    def integer(name: str, description: str) -> None:
        flags.DEFINE_integer(name, defaults[name], description, flag_values=values)

    def number(name: str, description: str) -> None:
        flags.DEFINE_float(name, defaults[name], description, flag_values=values)

    def switch(name: str, description: str) -> None:
        flags.DEFINE_boolean(name, defaults[name], description, flag_values=values)

    def choice(name: str, options: Sequence[str], description: str) -> None:
        flags.DEFINE_enum(name, defaults[name], options, description, flag_values=values)

    flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", flag_values=values)

    choice("dataset_type", configuration.DATASET_TYPES, "Rows from files, or generated with a planted teacher.")
    text("dataset_path", "Folder of the dataset.")
    text("fspec_file", "Feature specification, relative to dataset_path.")
    text("embedding_sizes_file", "JSON file of embedding dimensions by feature; a rule supplies those it lacks.")
    text("model_dir", "Folder of the checkpoints; ./checkpoints where /outbrain cannot be written.")
    text(
        "results_dir",
        "Folder of log, record and the ranks' output; ./results where /results cannot be written.",
    )
    text("log_filename", "Name of the DLLogger log in results_dir.")
    switch("use_checkpoint", "Go on from, or evaluate, the newest checkpoint in model_dir.")
    integer("synthetic_rows", "Rows to generate, training and evaluation together.")
    integer("synthetic_seed", "Seed of the generated rows; --seed changes no data.")
    text("synthetic_cache_dir", "Folder that keeps generated data; ~/.cache/recsys-harness by default.")
    integer("data_shards", "Parts of each batch that ranks share out; at least the number of ranks.")
    integer("shuffle_buffer_rows", "Rows, over all ranks, that are shuffled together at least.")

    choice("model", configuration.MODEL_NAMES, "The model.")
    flags.DEFINE_list(
        "deep_hidden_units",
        ",".join(map(str, defaults["deep_hidden_units"])),
        "Sizes of the hidden layers.",
        flag_values=values,
    )
    number("deep_dropout", "Drop probability after each hidden layer.")
    choice("combiner", configuration.COMBINERS, "How the ids of a multi-hot feature are pooled.")

    integer("global_batch_size", "Training batch over all ranks; 4096 by default without a GPU.")
    integer("eval_batch_size", "Evaluation batch over all ranks; 4096 by default without a GPU.")
    integer("num_epochs", "Passes over the training rows.")
    integer("max_steps", "End training after this many steps; the schedule still follows num_epochs.")
    integer("seed", "Seed of initial values, order of rows and dropout.")
    number("linear_learning_rate", "Rate of the wide part (FTRL).")
    number("deep_learning_rate", "Highest rate of the deep part (RMSprop).")
    number("deep_warmup_epochs", "Epochs over which the deep rate rises from 0.")
    integer("deep_warmup_steps", "The same in steps; replaces deep_warmup_epochs.")
    integer(
        "deep_decay_step", "Step from which the deep rate is an eighth; by default half of what follows the warm-up."
    )
    choice("lr_scaling", configuration.LR_SCALINGS, "Scale both rates with global_batch_size / 131072.")
    integer("checkpoint_every_steps", "Save this often, besides after each epoch.")
    integer("log_every_steps", "Steps between log points.")

    switch("evaluate", "Evaluate instead of training.")
    switch("benchmark", "Measure throughput of training, or with --evaluate of evaluation.")
    integer("benchmark_warmup_steps", "Steps before measuring begins.")
    integer("benchmark_steps", "Steps of a benchmark, warm-up included.")
    switch("disable_map_calculation", "Leave MAP@12 out of evaluations.")
    integer("num_auc_thresholds", "Accepted for old command lines and unused: AUC is exact.")

    switch("cpu", "Leave GPUs alone.")
    switch("amp", "Mixed precision with dynamic loss scaling.")
    choice("amp_dtype", configuration.AMP_DTYPES, "The 16-bit type of --amp; bfloat16 needs no loss scaling.")
    switch("xla", "Compile the dense part of a step with XLA.")
    choice("affinity", configuration.AFFINITY_MODES, "How ranks of one machine share its CPUs.")
    switch("fp16_compression", "Send gradients between ranks as float16.")
    choice("table_reduction", configuration.TABLE_REDUCTIONS, "How gradients of tables are summed over ranks.")
    integer("intra_op_threads", "Threads of one operation; by default the CPUs of the rank.")


def parse(arguments: Sequence[str]) -> RunConfig:
    """Reads a command line, without the program's name.

    Raises:
      HelpRequested: --help; carries the text to print.
      InputError: an unknown flag, a bad value, or an argument that is no flag; one line.
    """
    values = flags.FlagValues()
    _define(values)
    try:
        rest = values(["main.py", *arguments])
    except flags.Error as error:
        raise InputError(f"{error}; --help lists the flags") from error
    if values.help:
        raise HelpRequested("Trains, evaluates and benchmarks recommender models.\n" + _help(values))
    if len(rest) > 1:
        raise InputError(f"unexpected argument {rest[1]!r}: every setting is a flag; --help lists them")
    settings = {name: values[name].value for name in RunConfig().flat()}
    settings["deep_hidden_units"] = _sizes(settings["deep_hidden_units"])
    given = frozenset(name for name in settings if values[name].present)
    return RunConfig.from_flat(settings, given)


def _sizes(words: Sequence[str]) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise InputError(
            f"--deep_hidden_units must be a comma-separated list of positive sizes, got {','.join(words)!r}"
        ) from None


def _help(values: flags.FlagValues) -> str:
    """One entry per flag, in the order of definition, in groups by the part of the configuration they set."""
    lines = []
    parts = {field.name: field.default for field in dataclasses.fields(RunConfig) if field.name != "given"}
    for part, default in parts.items():
        lines.append(f"\n{part}:")
        for field in dataclasses.fields(default):
            flag = values[field.name]
            kind = flag.parser.flag_type() if hasattr(flag.parser, "flag_type") else ""
            options = getattr(flag.parser, "enum_values", None)
            shown = "{" + ",".join(options) + "}" if options else kind
            name = f"--[no]{field.name}" if kind == "bool" else f"--{field.name}={shown}"
            fallback = "" if flag.default is None else f" Default: {flag.default_as_str[1:-1]}."
            description = re.sub(r"^<.*?>: ", "", flag.help)
            lines += [f"  {name}", f"      {description}{fallback}"]
    return "\n".join(lines) + "\n"
