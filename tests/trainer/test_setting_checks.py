"""What settings may not be: each refusal says what, with which value, and what to do."""

import dataclasses

import pytest

from data.errors import InputError
from trainer import flags
from trainer.config import EmbeddingsConfig, ModeConfig, ModelConfig, RunConfig, TrainingConfig

OF_WIDE_DEEP = [
    "--embedding_sizes_file=sizes.json",
    "--deep_hidden_units=8,4",
    "--deep_dropout=0.5",
    "--linear_learning_rate=0.1",
    "--deep_learning_rate=0.1",
    "--deep_warmup_epochs=1.0",
    "--deep_warmup_steps=5",
    "--deep_decay_step=9",
]
OF_BOTH = [
    "--embedding_dim=16",
    "--bottom_mlp_dims=8,16",
    "--top_mlp_dims=8,1",
    "--optimizer=sgd",
    "--learning_rate=0.5",
    "--warmup_steps=1",
    "--decay_start_step=3",
    "--decay_steps=3",
    "--preset=tiny",
]
OF_DLRM = ["--interaction=dot", "--self_interaction=true"]
OF_DCNV2 = ["--num_cross_layers=2", "--cross_layer_projection_dim=4"]
OF_ALL = [
    "--combiner=mean",
    "--global_batch_size=8",
    "--lr_scaling=sqrt",
    "--use_checkpoint",
    "--checkpoint_every_steps=5",
    "--evaluate",
    "--benchmark",
    "--disable_map_calculation",
    "--embedding_parallelism=model",
    "--column_slice_threshold=5 --row_slice_threshold=5 --data_parallel_threshold=0",
    "--synthetic_dataset_cardinalities=7,9 --synthetic_dataset_hotness=1,2",
    "--synthetic_dataset_cardinalities=7,9 --synthetic_dataset_num_numerical_features=0",
    "--synthetic_feature_spec=x.yaml --synthetic_dataset_pooling=fixed --synthetic_dataset_power_law_exponent=0",
]
FOREIGN = [
    *((model, flag, "--model=wide_deep") for model in ("dlrm", "dcnv2") for flag in OF_WIDE_DEEP),
    *(("wide_deep", flag, "--model=dlrm and --model=dcnv2") for flag in OF_BOTH),
    *((model, flag, "--model=dlrm") for model in ("wide_deep", "dcnv2") for flag in OF_DLRM),
    *((model, flag, "--model=dcnv2") for model in ("wide_deep", "dlrm") for flag in OF_DCNV2),
]
OWN = [
    *(("wide_deep", flag) for flag in OF_WIDE_DEEP),
    *((model, flag) for model in ("dlrm", "dcnv2") for flag in OF_BOTH),
    *(("dlrm", flag) for flag in OF_DLRM),
    *(("dcnv2", flag) for flag in OF_DCNV2),
    *((model, flag) for model in ("wide_deep", "dlrm", "dcnv2") for flag in OF_ALL),
]
SIZES = "must be a comma-separated list of positive sizes, got "
NUMBER = "must be a finite number above 0, got "
SHAPE = "--synthetic_dataset_cardinalities=7,9"
TOGETHER = [
    ("--embedding_dim=16,0", f"--embedding_dim {SIZES}16,0"),
    ("--bottom_mlp_dims=-1", f"--bottom_mlp_dims {SIZES}-1"),
    ("--top_mlp_dims=0,1", f"--top_mlp_dims {SIZES}0,1"),
    ("--top_mlp_dims=8,2", "--top_mlp_dims must be a list that ends with 1, the logit, got 8,2"),
    ("--learning_rate=0", f"--learning_rate {NUMBER}0.0"),
    ("--learning_rate=inf", f"--learning_rate {NUMBER}inf"),
    ("--learning_rate=nan", f"--learning_rate {NUMBER}nan"),
    ("--warmup_steps=-1", "--warmup_steps must be at least 0, got -1"),
    ("--decay_start_step=-1", "--decay_start_step must be at least 0, got -1"),
    ("--decay_steps=-1", "--decay_steps must be at least 0, got -1"),
    ("--column_slice_threshold=-1", "--column_slice_threshold must be at least 0, got -1"),
    ("--row_slice_threshold=-5", "--row_slice_threshold must be at least 0, got -5"),
    ("--data_parallel_threshold=-5", "--data_parallel_threshold must be at least 0, got -5"),
    (
        "--embedding_dim=16,32,16",
        "--interaction=dot needs one embedding dimension for all features, got --embedding_dim=16,32,16 with 16 and "
        "32: give one number or use --interaction=concat",
    ),
    (
        "--interaction=concat --self_interaction",
        "--self_interaction is for --interaction=dot, got --interaction=concat: leave one of them out",
    ),
    (
        "--optimizer=rowwise_adagrad --column_slice_threshold=1000",
        "--column_slice_threshold=1000 cuts rows of tables, and --optimizer=rowwise_adagrad needs all columns of a row "
        "in one place: use --row_slice_threshold or another --optimizer",
    ),
    (
        "--synthetic_dataset_power_law_exponent=-1",
        "--synthetic_dataset_power_law_exponent must be a finite number of at least 0, got -1.0",
    ),
    ("--synthetic_dataset_power_law_exponent=inf", "finite number of at least 0, got inf"),
    ("--synthetic_dataset_power_law_exponent=nan", "finite number of at least 0, got nan"),
    ("--synthetic_dataset_cardinalities=7,0", f"--synthetic_dataset_cardinalities {SIZES}7,0"),
    (f"{SHAPE} --synthetic_dataset_hotness=1,-1", f"--synthetic_dataset_hotness {SIZES}1,-1"),
    (
        f"{SHAPE} --synthetic_dataset_num_numerical_features=-1",
        "--synthetic_dataset_num_numerical_features must be at least 0, got -1",
    ),
    (
        f"{SHAPE} --synthetic_feature_spec=x.yaml",
        f"{SHAPE} and --synthetic_feature_spec=x.yaml both say what to generate: leave one of them out",
    ),
    (
        "--synthetic_dataset_hotness=1,2 --synthetic_feature_spec=x.yaml",
        "--synthetic_dataset_hotness=1,2 and --synthetic_feature_spec=x.yaml both say what to generate",
    ),
    (
        "--synthetic_dataset_hotness=1,2",
        "--synthetic_dataset_hotness=1,2 needs --synthetic_dataset_cardinalities, one number for each table: add it",
    ),
    (
        "--synthetic_dataset_num_numerical_features=3",
        "--synthetic_dataset_num_numerical_features=3 needs --synthetic_dataset_cardinalities",
    ),
    (
        f"{SHAPE} --synthetic_dataset_hotness=1,2,3",
        "--synthetic_dataset_hotness has 3 numbers and --synthetic_dataset_cardinalities has 2: give one "
        "hotness for each table, or one for all",
    ),
    (
        "--synthetic_dataset_hotness=1,2 --preset=tiny",
        "--synthetic_dataset_hotness has 2 numbers and --synthetic_dataset_cardinalities has 8 (--preset=tiny sets "
        "those that are not given): give one hotness",
    ),
    (
        f"{SHAPE} --synthetic_dataset_hotness=7,10 --synthetic_dataset_pooling=fixed",
        "--synthetic_dataset_pooling=fixed draws different ids, and --synthetic_dataset_hotness asks for 10 of the 9 "
        "that table 2 has: lower it or use --synthetic_dataset_pooling=distinct",
    ),
    (
        f"{SHAPE} --synthetic_dataset_hotness=9 --synthetic_dataset_pooling=fixed",
        "asks for 9 of the 7 that table 1 has",
    ),
]


def refusal(model, line):
    with pytest.raises(InputError) as caught:
        flags.parse([f"--model={model}", *line.split()])
    return str(caught.value)


@pytest.mark.parametrize(("model", "flag", "owners"), FOREIGN)
def test_a_flag_of_another_model_is_refused_by_name(model, flag, owners):
    assert refusal(model, flag) == (f"{flag} is for {owners}, not for --model={model}: leave it out or change --model")


@pytest.mark.parametrize(("model", "line"), OWN)
def test_a_models_own_flags_are_taken(model, line):
    config = flags.parse([f"--model={model}", *line.split()])
    names = {word.lstrip("-").partition("=")[0] for word in line.split()}
    assert config.model.model == model and names <= config.given


def test_a_flag_of_another_model_is_refused_even_with_the_value_that_stands():
    assert "--deep_dropout=0.1 is for" in refusal("dlrm", "--deep_dropout=0.1")
    assert "--self_interaction=false is for" in refusal("dcnv2", "--noself_interaction")


def test_what_was_not_given_is_not_refused():
    wide = RunConfig(model=ModelConfig(deep_dropout=0.3, num_cross_layers=7))
    assert RunConfig.from_flat(wide.flat() | {"model": "dlrm"}).model.deep_dropout == 0.3


@pytest.mark.parametrize(("line", "said"), TOGETHER)
def test_what_cannot_be_is_refused_with_both_numbers_and_a_remedy(line, said):
    message = refusal("dlrm", line)
    assert said in message and "\n" not in message


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("dlrm", "--embedding_dim=16,16"),
        ("dlrm", "--embedding_dim=16,32 --interaction=concat"),
        ("dcnv2", "--embedding_dim=16,32"),
        # Whether there is a bottom MLP, the data decides: so the model checks its width, not the flags.
        ("dlrm", "--embedding_dim=16"),
        ("dlrm", "--optimizer=rowwise_adagrad --row_slice_threshold=1000"),
        ("dlrm", "--optimizer=adagrad --column_slice_threshold=1000 --row_slice_threshold=1000"),
        ("wide_deep", "--column_slice_threshold=1000"),
        ("dlrm", "--synthetic_dataset_cardinalities=7,9 --synthetic_dataset_hotness=7,10"),
        (
            "dlrm",
            "--synthetic_dataset_cardinalities=7,9 --synthetic_dataset_hotness=10 --synthetic_dataset_pooling=distinct",
        ),
        (
            "dlrm",
            "--synthetic_dataset_cardinalities=7,9 --synthetic_dataset_hotness=7,9 --synthetic_dataset_pooling=fixed",
        ),
        ("dlrm", "--synthetic_dataset_cardinalities=7 --synthetic_dataset_pooling=distinct"),
        ("dlrm", "--preset=tiny --synthetic_dataset_cardinalities=500,600 --synthetic_dataset_hotness=3,4"),
        ("dlrm", "--preset=tiny --synthetic_dataset_pooling=fixed"),
    ],
)
def test_what_goes_together_is_taken(model, line):
    flags.parse([f"--model={model}", *line.split()])


def test_cross_layers_have_a_size():
    dcnv2 = {"model": "dcnv2"}
    with pytest.raises(InputError, match="--num_cross_layers must be at least 1, got 0"):
        RunConfig.from_flat(dcnv2 | {"num_cross_layers": 0})
    with pytest.raises(InputError, match="--cross_layer_projection_dim must be at least 1, got 0"):
        RunConfig.from_flat(dcnv2 | {"cross_layer_projection_dim": 0})


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"model": ModelConfig(model="deepfm")}, "--model must be one of wide_deep, dlrm, dcnv2, got 'deepfm'"),
        ({"model": ModelConfig(interaction="cross")}, "--interaction must be one of dot, concat, got 'cross'"),
        ({"model": ModelConfig(top_mlp_dims=())}, "--top_mlp_dims must be a comma-separated list"),
        ({"training": TrainingConfig(optimizer="lamb")}, "--optimizer must be one of sgd, adagrad, .* got 'lamb'"),
        ({"embeddings": EmbeddingsConfig(embedding_parallelism="x")}, "--embedding_parallelism must be one of"),
        ({"mode": ModeConfig(preset="huge")}, "--preset must be one of criteo, tiny, got 'huge'"),
        ({"mode": ModeConfig(preset="tiny")}, "--preset=tiny is for --model=dlrm and --model=dcnv2, not for"),
    ],
)
def test_parts_that_were_made_directly_are_checked_too(part, said):
    with pytest.raises(InputError, match=said):
        dataclasses.replace(RunConfig(), **part)


@pytest.mark.parametrize("target", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_a_target_that_no_map_can_have(target):
    with pytest.raises(InputError, match="--target_map12 must be above 0 and at most 1, got"):
        RunConfig.from_flat({"target_map12": target}, frozenset({"target_map12"}))


@pytest.mark.parametrize("other", ["evaluate", "benchmark", "disable_map_calculation"])
def test_a_target_that_no_evaluation_could_reach(other):
    RunConfig.from_flat({"target_map12": 1.0}, frozenset({"target_map12"}))
    with pytest.raises(InputError, match=f"--target_map12=0.5 ends training, and does not go with --{other}, which"):
        RunConfig.from_flat({"target_map12": 0.5, other: True}, frozenset({"target_map12", other}))
