"""The command line: the only place that knows absl's flags."""

import dataclasses
import re
from collections.abc import Sequence

from absl import flags

from data.errors import InputError
from trainer import recorded_config
from trainer.config import RunConfig
from trainer.presets import MODEL_DEFAULTS, MODELS_OF
from trainer.setting_checks import CHOICES


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

    def choice(name: str, description: str) -> None:
        flags.DEFINE_enum(name, defaults[name], CHOICES[name], description, flag_values=values)

    def sizes(name: str, description: str) -> None:
        default = defaults[name]
        flags.DEFINE_list(name, default and ",".join(map(str, default)), description, flag_values=values)

    flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", flag_values=values)
    flags.DEFINE_string(
        "config",
        None,
        "A record (result.json, or FILE:LINE of the suite's records.jsonl) whose configuration is run again, "
        "results_dir excepted; flags that are given come before it.",
        flag_values=values,
    )

    choice("dataset_type", "Rows from files, or generated with a planted teacher.")
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
    sizes(
        "synthetic_dataset_cardinalities", "Rows of each table to generate ids for; Outbrain's features if not given."
    )
    sizes(
        "synthetic_dataset_hotness",
        "Most ids that a sample looks up: in each generated table, or one number for all; 1 if not given.",
    )
    integer(
        "synthetic_dataset_num_numerical_features", "Numerical features to generate beside the tables; 13 if not given."
    )
    number(
        "synthetic_dataset_power_law_exponent",
        "Generated ids fall in frequency like rank to minus this; 0 makes them all as frequent, 1.1 if not given.",
    )
    choice(
        "synthetic_dataset_pooling",
        "Ids that a sample looks up in a generated table of hotness h: any is 0 to h with repeats, distinct 1 to h "
        "different ones, fixed h different ones.",
    )
    text(
        "synthetic_feature_spec", "Feature specification whose features are generated, in place of the shape by flags."
    )
    integer("data_shards", "Parts of each batch that ranks share out; at least the number of ranks.")
    integer("shuffle_buffer_rows", "Rows, over all ranks, that are shuffled together at least.")

    choice("model", "The model.")
    choice("preset", "Known settings in place of defaults; flags that are given come before it.")
    sizes("deep_hidden_units", "Sizes of the hidden layers.")
    number("deep_dropout", "Drop probability after each hidden layer.")
    sizes("embedding_dim", "Embedding dimension: one for all categorical features, or one for each.")
    sizes("bottom_mlp_dims", "Layers for the numerical features; with interaction=dot the last is embedding_dim.")
    sizes("top_mlp_dims", "Layers behind the interaction; the last is 1.")
    choice("interaction", "How embeddings and the bottom MLP's output meet: products of all pairs, or side by side.")
    switch("self_interaction", "With interaction=dot: each vector's product with itself too.")
    integer("num_cross_layers", "Number of cross layers.")
    integer("cross_layer_projection_dim", "Rank of the cross layers' matrices.")
    choice("combiner", "How the ids of a multi-hot feature are pooled.")

    choice(
        "embedding_parallelism",
        "data: every rank holds every table; model: ranks hold different tables, but small ones; auto: what fits best.",
    )
    integer("column_slice_threshold", "Tables of more weights (rows x dimension) are cut by columns.")
    integer("row_slice_threshold", "Tables of more weights are cut by rows.")
    integer(
        "data_parallel_threshold",
        "Tables of this many weights or fewer are held by every rank: 0 for none; by default the planner decides.",
    )

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
    choice("optimizer", "Of all weights; adam is lazy on tables: rows that a batch does not look up keep their state.")
    number("learning_rate", "Highest rate of all weights.")
    integer("warmup_steps", "Steps over which the rate rises from 0.")
    integer("decay_start_step", "Step from which the rate falls, with the square of the steps that are left.")
    integer("decay_steps", "Steps over which the rate falls to 0; 0 for no decay.")
    choice(
        "lr_scaling", "Scale the rates with global_batch_size / the default batch size of the model or of the preset."
    )
    integer("checkpoint_every_steps", "Save this often, besides after each epoch.")
    integer("log_every_steps", "Steps between log points.")
    integer("evals_per_epoch", "Evaluations in each epoch, evenly placed, the last at its end.")
    number("target_map12", "End training when an evaluation finds MAP@12 of at least this.")

    switch("evaluate", "Evaluate instead of training.")
    switch("benchmark", "Measure throughput of training, or with --evaluate of evaluation.")
    integer("benchmark_warmup_steps", "Steps before measuring begins.")
    integer("benchmark_steps", "Steps of a benchmark, warm-up included; with benchmark_seconds at most so many.")
    number("benchmark_seconds", "End a benchmark when so many seconds, and at least 5 steps, are measured.")
    text("benchmark_name", "What records call the configuration of a benchmark.")
    switch("disable_map_calculation", "Leave MAP@12 out of evaluations.")
    integer("num_auc_thresholds", "Accepted for old command lines and unused: AUC is exact.")

    switch("cpu", "Leave GPUs alone.")
    switch("amp", "Mixed precision with dynamic loss scaling.")
    choice("amp_dtype", "The 16-bit type of --amp; bfloat16 needs no loss scaling.")
    switch("xla", "Compile the dense part of a step with XLA.")
    choice("affinity", "How ranks of one machine share its CPUs.")
    switch("fp16_compression", "Send gradients between ranks as float16.")
    choice("table_reduction", "How gradients of tables are summed over ranks.")
    integer("intra_op_threads", "Threads of one operation; by default the CPUs of the rank.")
    switch(
        "deterministic",
        "Have TensorFlow use only operations that give the same bits in every run; HOROVOD_AUTOTUNE is refused.",
    )
    switch("tf32", "On GPUs: float32 products as TF32 ones, where the GPU has them.")
    choice(
        "gpu_allocator",
        "GPU memory, taken as it is needed: by TensorFlow's own allocator (growth) or the driver's (async).",
    )
    integer("l2_fetch_granularity", "On GPUs: bytes that the L2 cache fetches at once; 0 leaves it to the driver.")


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
    given = {name: values[name].value for name in RunConfig().flat() if values[name].present}
    # Only lists of sizes are lists.
    settings = {name: _sizes(name, value) if isinstance(value, list) else value for name, value in given.items()}
    if values.config is not None:
        return recorded_config.again(values.config, settings)
    return RunConfig.from_flat(settings, frozenset(settings))


def _sizes(name: str, words: Sequence[str]) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise InputError(
            f"--{name} must be a comma-separated list of positive sizes, got {','.join(words)!r}"
        ) from None


def _help(values: flags.FlagValues) -> str:
    """One entry per flag, in groups by the part of the configuration they set."""
    lines = ["\nagain:", "  --config=string", f"      {values['config'].help}"]
    parts = {field.name: field.default for field in dataclasses.fields(RunConfig) if field.name != "given"}
    for part, default in parts.items():
        lines.append(f"\n{part}:")
        for field in dataclasses.fields(default):
            flag = values[field.name]
            kind = flag.parser.flag_type() if hasattr(flag.parser, "flag_type") else ""
            options = getattr(flag.parser, "enum_values", None)
            shown = "{" + ",".join(options) + "}" if options else "int,..." if "list" in kind else kind
            name = f"--[no]{field.name}" if kind == "bool" else f"--{field.name}={shown}"
            description = re.sub(r"^<.*?>: ", "", flag.help)
            fallback = "" if flag.default is None else f" Default: {flag.default_as_str[1:-1]}."
            lines += [f"  {name}", f"      {_owners(field.name)}{description}{_by_model(field.name)}{fallback}"]
    return "\n".join(lines) + "\n"


def _owners(name: str) -> str:
    """The models that have a setting, if others do not."""
    return f"[{', '.join(MODELS_OF[name])}] " if name in MODELS_OF else ""


def _by_model(name: str) -> str:
    """The defaults of models that have one of their own, as sentences."""
    models: dict[str, list[str]] = {}
    for model, defaults in MODEL_DEFAULTS.items():
        if name in defaults:
            models.setdefault(str(defaults[name]), []).append(model)
    return "".join(f" With {' and '.join(names)} by default {value}." for value, names in models.items())
