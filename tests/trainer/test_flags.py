import re
import subprocess
import sys
from pathlib import Path

import pytest

from data.errors import InputError
from trainer import flags
from trainer.config import RunConfig
from trainer.presets import MODELS_OF

ROOT = Path(__file__).resolve().parents[2]

# The defaults that users of the ancestors know.
KNOWN_DEFAULTS = {
    "dataset_path": "/outbrain/data",
    "fspec_file": "feature_spec.yaml",
    "embedding_sizes_file": "data/outbrain/embedding_sizes.json",
    "model_dir": "/outbrain/checkpoints",
    "results_dir": "/results",
    "log_filename": "log.json",
    "use_checkpoint": "false",
    "benchmark_warmup_steps": "500",
    "benchmark_steps": "1000",
    "num_auc_thresholds": "8000",
    "disable_map_calculation": "false",
    "global_batch_size": "131072",
    "eval_batch_size": "131072",
    "num_epochs": "20",
    "linear_learning_rate": "0.02",
    "deep_learning_rate": "0.00012",
    "deep_warmup_epochs": "6.0",
    "deep_hidden_units": "1024,1024,1024,1024,1024",
    "deep_dropout": "0.1",
    "combiner": "sum",
    "affinity": "unique_interleaved",
    "cpu": "false",
    "amp": "false",
    "xla": "false",
    "evaluate": "false",
    "benchmark": "false",
}
NEW_DEFAULTS = {
    "model": "wide_deep",
    "dataset_type": "parquet",
    "seed": "0",
    "tf32": "true",
    "gpu_allocator": "growth",
    "l2_fetch_granularity": "128",
    "lr_scaling": "none",
    "amp_dtype": "float16",
    "data_shards": "96",
    "embedding_dim": "128",
    "bottom_mlp_dims": "512,256,128",
    "top_mlp_dims": "1024,1024,512,256,1",
    "interaction": "dot",
    "self_interaction": "false",
    "num_cross_layers": "3",
    "cross_layer_projection_dim": "512",
    "optimizer": "sgd",
    "learning_rate": "24.0",
    "warmup_steps": "8000",
    "decay_start_step": "48000",
    "decay_steps": "24000",
    "embedding_parallelism": "data",
    "synthetic_dataset_pooling": "any",
    # Without a default: not in force unless given.
    "max_steps": None,
    "deep_warmup_steps": None,
    "deep_decay_step": None,
    "checkpoint_every_steps": None,
    "preset": None,
    "column_slice_threshold": None,
    "row_slice_threshold": None,
    "data_parallel_threshold": None,
    "synthetic_dataset_cardinalities": None,
    "synthetic_dataset_hotness": None,
    "synthetic_dataset_num_numerical_features": None,
    "synthetic_dataset_power_law_exponent": None,
    "synthetic_feature_spec": None,
}
CHOICES = {
    "model": "wide_deep,dlrm,dcnv2",
    "preset": "criteo,tiny",
    "interaction": "dot,concat",
    "optimizer": "sgd,adagrad,rowwise_adagrad,rmsprop,adam",
    "embedding_parallelism": "data,model,auto",
    "synthetic_dataset_pooling": "any,distinct,fixed",
    "dataset_type": "parquet,synthetic",
    "gpu_allocator": "growth,async",
    "lr_scaling": "none,sqrt,linear",
    "combiner": "sum,mean",
    "amp_dtype": "float16,bfloat16",
    "affinity": "all,single,single_unique,unique_interleaved,unique_contiguous,disabled",
}
REFUSED = [
    ("--global_batch_sise=3", "global_batch_sise"),
    ("--nothing", "nothing"),
    ("--global_batch_size", "Missing value"),
    ("--global_batch_size=many", "many"),
    ("--global_batch_size=1.5", "1.5"),
    ("--global_batch_size=0", "--global_batch_size must be at least 1, got 0"),
    ("--eval_batch_size=-4", "--eval_batch_size must be at least 1, got -4"),
    ("--num_epochs=0", "--num_epochs"),
    ("--max_steps=-1", "--max_steps"),
    ("--seed=-1", "--seed must be from 0"),
    ("--seed=2147483648", "--seed must be from 0"),
    ("--deep_learning_rate=0", "--deep_learning_rate must be a finite number above 0, got 0.0"),
    ("--linear_learning_rate=-0.1", "--linear_learning_rate"),
    ("--linear_learning_rate=inf", "--linear_learning_rate"),
    ("--deep_learning_rate=nan", "--deep_learning_rate"),
    ("--deep_warmup_epochs=-1", "--deep_warmup_epochs must be at least 0"),
    ("--deep_warmup_epochs=inf", "--deep_warmup_epochs must be finite"),
    ("--deep_warmup_epochs=nan", "--deep_warmup_epochs"),
    ("--deep_warmup_steps=-1", "--deep_warmup_steps"),
    ("--deep_decay_step=-1", "--deep_decay_step"),
    ("--deep_dropout=1", "--deep_dropout must be from 0 to 0.9999, got 1.0"),
    ("--deep_dropout=-0.1", "--deep_dropout"),
    ("--deep_dropout=nan", "--deep_dropout"),
    ("--deep_hidden_units=10,x", "10,x"),
    ("--deep_hidden_units=10,0", "--deep_hidden_units"),
    ("--deep_hidden_units=10,,3", "10,,3"),
    ("--deep_hidden_units=", "--deep_hidden_units"),
    ("--checkpoint_every_steps=0", "--checkpoint_every_steps"),
    ("--log_every_steps=0", "--log_every_steps"),
    ("--data_shards=0", "--data_shards"),
    ("--shuffle_buffer_rows=0", "--shuffle_buffer_rows"),
    ("--synthetic_rows=0", "--synthetic_rows"),
    ("--log_filename=", "--log_filename must be a file name"),
    ("--log_filename=result.json", "--log_filename"),
    ("--log_filename=rank-12.log", "--log_filename"),
    ("--log_filename=./result.json", "--log_filename"),
    ("--synthetic_seed=-1", "--synthetic_seed"),
    ("--intra_op_threads=0", "--intra_op_threads"),
    ("--num_auc_thresholds=0", "--num_auc_thresholds"),
    ("--gpu_allocator=bfc", "growth|async"),
    (
        "--l2_fetch_granularity=100",
        "--l2_fetch_granularity must be 32, 64 or 128, or 0 to leave it to the driver, got 100",
    ),
    ("--benchmark_steps=0", "--benchmark_steps"),
    ("--benchmark_warmup_steps=-1", "--benchmark_warmup_steps"),
    ("--affinity=some", "all|single|single_unique|unique_interleaved|unique_contiguous|disabled"),
    ("--combiner=max", "sum|mean"),
    ("--model=deepfm", "wide_deep|dlrm|dcnv2"),
    ("--model=dlrm --preset=small", "criteo|tiny"),
    ("--model=dlrm --interaction=cross", "dot|concat"),
    ("--model=dlrm --optimizer=ftrl", "sgd|adagrad|rowwise_adagrad|rmsprop|adam"),
    ("--embedding_parallelism=hybrid", "data|model|auto"),
    ("--synthetic_dataset_pooling=sum", "any|distinct|fixed"),
    (
        "--model=dlrm --embedding_dim=64,x",
        "--embedding_dim must be a comma-separated list of positive sizes, got '64,x'",
    ),
    ("--model=dlrm --embedding_dim=", "--embedding_dim must be a comma-separated list of positive sizes"),
    ("--model=dlrm --bottom_mlp_dims=8,1.5", "--bottom_mlp_dims must be a comma-separated list of positive sizes"),
    ("--model=dlrm --top_mlp_dims=8,,1", "--top_mlp_dims must be a comma-separated list of positive sizes"),
    ("--synthetic_dataset_cardinalities=9,many", "--synthetic_dataset_cardinalities must be a comma-separated list"),
    ("--synthetic_dataset_cardinalities=", "--synthetic_dataset_cardinalities must be a comma-separated list"),
    ("--synthetic_dataset_hotness=1,0", "--synthetic_dataset_hotness must be a comma-separated list"),
    ("--synthetic_dataset_power_law_exponent=steep", "steep"),
    ("--row_slice_threshold=1e6", "1e6"),
    ("--dataset_type=csv", "parquet|synthetic"),
    ("--lr_scaling=cubic", "none|sqrt|linear"),
    ("--amp_dtype=float32", "float16|bfloat16"),
    ("--amp=perhaps", "perhaps"),
    ("train", "unexpected argument 'train'"),
    ("--amp true", "unexpected argument 'true'"),
    (
        "--benchmark --benchmark_steps=500",
        "--benchmark_warmup_steps 500 leaves nothing to measure of --benchmark_steps",
    ),
    ("--benchmark --benchmark_steps=5 --benchmark_warmup_steps=9", "leaves nothing to measure"),
    ("--benchmark_seconds=0", "--benchmark_seconds must be a finite number above 0, got 0"),
    ("--benchmark_seconds=inf", "--benchmark_seconds must be a finite number above 0, got inf"),
    ("--benchmark_seconds=nan", "--benchmark_seconds must be a finite number above 0, got nan"),
    (
        "--benchmark --benchmark_seconds=2 --benchmark_steps=9 --benchmark_warmup_steps=5",
        "--benchmark_seconds 2 measures at least 5 steps, and --benchmark_steps 9 leaves 4 after",
    ),
    ("--benchmark_name=", "--benchmark_name must be 1 to 100 letters, digits or ._+-"),
    ("--benchmark_name=a/b", "got 'a/b'"),
    ("--config=/nonexistent", "--config=/nonexistent: cannot be read: No such file"),
    ("--flagfile=/nonexistent", "/nonexistent"),
]


def parse(line):
    return flags.parse(line.split())


@pytest.fixture(scope="module")
def help_text():
    with pytest.raises(flags.HelpRequested) as request:
        parse("--help")
    return str(request.value)


def entries(text):
    """Flag -> (what may stand behind it, default or None)."""
    found = {}
    for head, body in re.findall(r"^  --(\S.*)\n      (.+)$", text, flags=re.MULTILINE):
        name, _, values = head.partition("=")
        default = re.search(r" Default: (.*)\.$", body)
        found[name.removeprefix("[no]")] = (values, default.group(1) if default else None)
    return found


def test_help_lists_every_flag_with_its_default(help_text):
    listed = entries(help_text)
    assert set(listed) == set(RunConfig().flat()) | {"config"}
    for name, default in (KNOWN_DEFAULTS | NEW_DEFAULTS).items():
        assert listed[name][1] == default, name


def test_help_lists_the_choices(help_text):
    listed = entries(help_text)
    assert {name: listed[name][0] for name in CHOICES} == {name: f"{{{words}}}" for name, words in CHOICES.items()}


def test_help_says_which_models_have_a_flag(help_text):
    bodies = dict(re.findall(r"^  --(?:\[no\])?(\w+).*\n      (.+)$", help_text, flags=re.MULTILINE))
    owners = {name: body[1 : body.index("]")] for name, body in bodies.items() if body.startswith("[")}
    assert owners["deep_dropout"] == owners["embedding_sizes_file"] == "wide_deep"
    assert owners["embedding_dim"] == owners["optimizer"] == owners["preset"] == "dlrm, dcnv2"
    assert (owners["self_interaction"], owners["num_cross_layers"]) == ("dlrm", "dcnv2")
    assert not {"model", "combiner", "global_batch_size", "embedding_parallelism", "use_checkpoint"} & set(owners)


def test_help_says_where_a_model_has_a_default_of_its_own(help_text):
    bodies = dict(re.findall(r"^  --(\w+).*\n      (.+)$", help_text, flags=re.MULTILINE))
    assert bodies["eval_batch_size"].endswith(" With dlrm and dcnv2 by default 65536. Default: 131072.")
    assert bodies["optimizer"].endswith(" With dcnv2 by default adam. Default: sgd.")
    assert "by default" not in bodies["decay_steps"]


def test_help_comes_before_a_complaint_about_values():
    with pytest.raises(flags.HelpRequested):
        parse("--num_epochs=0 --help")


def test_no_flags_give_the_defaults():
    assert parse("") == RunConfig()


@pytest.mark.parametrize(("line", "said"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line_that_names_it(line, said):
    with pytest.raises(InputError) as caught:
        parse(line)
    message = str(caught.value)
    assert said in message and "\n" not in message and message == message.strip()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--global_batch_size 4096", "global_batch_size", 4096),
        ("--global_batch_size=4096", "global_batch_size", 4096),
        ("-global_batch_size 4096", "global_batch_size", 4096),
        ("--amp", "amp", True),
        ("--amp=true", "amp", True),
        ("--amp --noamp", "amp", False),
        ("--noamp", "amp", False),
        ("--nouse_checkpoint", "use_checkpoint", False),
        ("--deep_hidden_units=1024,1024,512", "deep_hidden_units", (1024, 1024, 512)),
        ("--deep_hidden_units 8", "deep_hidden_units", (8,)),
        ("--synthetic_dataset_cardinalities=10,1000000", "synthetic_dataset_cardinalities", (10, 1000000)),
        ("--synthetic_dataset_power_law_exponent 0", "synthetic_dataset_power_law_exponent", 0.0),
        ("--synthetic_dataset_pooling=fixed", "synthetic_dataset_pooling", "fixed"),
        ("--synthetic_feature_spec a/b.yaml", "synthetic_feature_spec", "a/b.yaml"),
        ("--embedding_parallelism=model", "embedding_parallelism", "model"),
        ("--row_slice_threshold=0", "row_slice_threshold", 0),
        ("--affinity single_unique", "affinity", "single_unique"),
        ("--deep_learning_rate 1e-3", "deep_learning_rate", 0.001),
        ("--num_epochs=1 --num_epochs=2", "num_epochs", 2),
        ("--deep_warmup_epochs 6", "deep_warmup_epochs", 6.0),
        ("--max_steps=3", "max_steps", 3),
        ("--benchmark_seconds=2.5", "benchmark_seconds", 2.5),
        ("--benchmark_name=A.1dev-embed4_x+y", "benchmark_name", "A.1dev-embed4_x+y"),
        ("--num_auc_thresholds=200", "num_auc_thresholds", 200),
    ],
)
def test_spellings_that_users_have(line, name, value):
    config = parse(line)
    assert config.flat()[name] == value and config.given == {name}
    assert {key: v for key, v in config.flat().items() if key != name} == {
        key: v for key, v in RunConfig().flat().items() if key != name
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--embedding_dim=64", "embedding_dim", (64,)),
        ("--bottom_mlp_dims 512,128", "bottom_mlp_dims", (512, 128)),
        ("--top_mlp_dims=8,1", "top_mlp_dims", (8, 1)),
        ("--self_interaction", "self_interaction", True),
        ("--optimizer=rowwise_adagrad", "optimizer", "rowwise_adagrad"),
        ("--learning_rate=1e-2", "learning_rate", 0.01),
        ("--decay_steps=0", "decay_steps", 0),
    ],
)
def test_spellings_of_dlrm(line, name, value):
    config, plain = parse(f"--model=dlrm {line}"), parse("--model=dlrm")
    assert config.flat() == plain.flat() | {name: value} and config.given == {"model", name}


def test_a_value_with_spaces_and_quotes_arrives_unharmed():
    assert flags.parse(["--dataset_path", "a b/'c' (d)"]).data.dataset_path == "a b/'c' (d)"


@pytest.mark.parametrize("model", ["wide_deep", "dlrm", "dcnv2"])
def test_every_setting_of_a_model_can_be_given(model):
    config = RunConfig.from_flat({"model": model})
    line = []
    own = {name: value for name, value in config.flat().items() if model in MODELS_OF.get(name, (model,))}
    for name, value in own.items():
        if isinstance(value, bool):
            line.append(f"--{'' if value else 'no'}{name}")
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            line += [f"--{name}", str(text)]
    parsed = flags.parse(line)
    assert parsed.flat() == config.flat()
    assert parsed.given == {name for name, value in own.items() if value is not None}


def test_the_command_line_imports_nothing_heavy():
    """Both ends of `main` that must be quick: help and bad flags."""
    script = (
        "import sys, main\n"
        "codes = [main.main(['--help']), main.main(['--num_epochs=0']), main.main(['x'])]\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'pandas', 'pyarrow', 'horovod', 'yaml'} & set(sys.modules)\n"
        "print('codes', codes, 'heavy', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "codes [0, 2, 2] heavy []"
    assert len(done.stderr.splitlines()) == 2
