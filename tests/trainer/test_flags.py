import re
import subprocess
import sys
from pathlib import Path

import pytest

from data.errors import InputError
from trainer import flags
from trainer.config import RunConfig

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
    "lr_scaling": "none",
    "amp_dtype": "float16",
    "data_shards": "96",
    # Without a default: not in force unless given.
    "max_steps": None,
    "deep_warmup_steps": None,
    "deep_decay_step": None,
    "checkpoint_every_steps": None,
}
CHOICES = {
    "model": "wide_deep,dlrm",
    "dataset_type": "parquet,synthetic",
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
    ("--benchmark_steps=0", "--benchmark_steps"),
    ("--benchmark_warmup_steps=-1", "--benchmark_warmup_steps"),
    ("--affinity=some", "all|single|single_unique|unique_interleaved|unique_contiguous|disabled"),
    ("--combiner=max", "sum|mean"),
    ("--model=deepfm", "wide_deep|dlrm"),
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
    assert set(listed) == set(RunConfig().flat())
    for name, default in (KNOWN_DEFAULTS | NEW_DEFAULTS).items():
        assert listed[name][1] == default, name


def test_help_lists_the_choices(help_text):
    listed = entries(help_text)
    assert {name: listed[name][0] for name in CHOICES} == {name: f"{{{words}}}" for name, words in CHOICES.items()}


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
        ("--affinity single_unique", "affinity", "single_unique"),
        ("--deep_learning_rate 1e-3", "deep_learning_rate", 0.001),
        ("--num_epochs=1 --num_epochs=2", "num_epochs", 2),
        ("--deep_warmup_epochs 6", "deep_warmup_epochs", 6.0),
        ("--max_steps=3", "max_steps", 3),
        ("--num_auc_thresholds=200", "num_auc_thresholds", 200),
    ],
)
def test_spellings_that_users_have(line, name, value):
    config = parse(line)
    assert config.flat()[name] == value and config.given == {name}
    assert {key: v for key, v in config.flat().items() if key != name} == {
        key: v for key, v in RunConfig().flat().items() if key != name
    }


def test_a_value_with_spaces_and_quotes_arrives_unharmed():
    assert flags.parse(["--dataset_path", "a b/'c' (d)"]).data.dataset_path == "a b/'c' (d)"


def test_every_setting_can_be_given():
    config = RunConfig()
    line = []
    for name, value in config.flat().items():
        if isinstance(value, bool):
            line.append(f"--{'' if value else 'no'}{name}")
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            line += [f"--{name}", str(text)]
    parsed = flags.parse(line)
    assert parsed.flat() == config.flat()
    assert parsed.given == {name for name, value in config.flat().items() if value is not None}


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
