"""Real Outbrain clicks through the whole program: raw files, parquet, training, evaluation, checkpoint.

Seed s stands for one split of the displays and one model, so that the mean over SEEDS covers the luck of both.
"""

import csv
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest

import main
from data.outbrain import sample
from trainer import flags
from trainer.distributed import SingleProcess
from trainer.runtime import Device, Surroundings

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOROVODRUN = os.path.join(os.path.dirname(sys.executable), "horovodrun")
SEEDS = (0, 1, 2)
TRAINING = (
    "--global_batch_size=512",
    "--num_epochs=6",
    "--deep_hidden_units=64,32",
    "--deep_dropout=0.3",
    "--linear_learning_rate=0.5",
    "--deep_learning_rate=0.001",
    "--deep_warmup_epochs=1",
)
FIGURES = ("map_at_12", "auc", "log_loss", "normalized_entropy", "calibration", "displays", "displays_without_click")


def launch(*arguments):
    return main.run(flags.parse(arguments), SingleProcess(), Surroundings(Device(False, "CPU")))


def locations(dataset, folder, seed):
    """The flags that say where everything is."""
    return (
        f"--dataset_path={dataset}",
        f"--model_dir={folder}/checkpoints",
        f"--results_dir={folder}/results",
        "--eval_batch_size=4096",
        f"--seed={seed}",
    )


def figures(record):
    return {name: getattr(record, name) for name in FIGURES}


def read_clicks(folder):
    with open(folder / "clicks_train.csv", newline="", encoding="utf-8") as file:
        return [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]


def displays_of(spec, source):
    return pq.read_table(spec.source_files(source)[0], columns=["display_id"])["display_id"].to_pylist()


def map_at_12(rows, score):
    """MAP@12 of (display, ad, clicked) rows with one click per display, by the definition: ties are averaged."""
    displays = defaultdict(list)
    for display, ad, clicked in rows:
        displays[display].append((score(ad), clicked))
    total = 0.0
    for ads in displays.values():
        (hit,) = (value for value, clicked in ads if clicked)
        above = sum(value > hit for value, _ in ads)
        places = [above + n for n, _ in enumerate([value for value, _ in ads if value == hit], start=1)]
        total += sum(1 / place for place in places if place <= 12) / len(places)
    return total / len(displays)


@dataclasses.dataclass
class Trained:
    spec: sample.FeatureSpec
    folder: pathlib.Path
    record: object

    @property
    def dataset(self):
        return os.path.dirname(self.spec.path)


@pytest.fixture(scope="module")
def raw(known_outbrain_sample):
    return known_outbrain_sample


@pytest.fixture(scope="module")
def trained(raw, tmp_path_factory):
    """Seed -> a model trained on the sample."""
    results = {}
    for seed in SEEDS:
        folder = tmp_path_factory.mktemp(f"seed-{seed}")
        spec = sample.prepare(str(raw), str(folder / "dataset"), seed=seed)
        record = launch(*locations(folder / "dataset", folder, seed), *TRAINING)
        results[seed] = Trained(spec, folder, record)
    return results


@pytest.mark.parametrize(
    ("seed", "train_rows", "train_displays", "test_rows", "test_displays"),
    [(0, 8091, 1588, 1908, 371), (1, 8007, 1569, 1992, 390), (2, 7738, 1525, 2261, 434)],
)
def test_every_click_row_is_trained_on_or_held_out(
    raw, trained, seed, train_rows, train_displays, test_rows, test_displays
):
    assert len(read_clicks(raw)) == train_rows + test_rows == 9999
    spec, record = trained[seed].spec, trained[seed].record
    train, test = displays_of(spec, "train"), displays_of(spec, "test")
    assert (len(train), len(set(train))) == (train_rows, train_displays)
    assert (len(test), len(set(test))) == (test_rows, test_displays)
    assert train_displays + test_displays == 1959 == len(set(train) | set(test))
    assert spec.metadata["outbrain_sample"]["rows_without_promoted_content"] == 6951
    assert (record.displays, record.displays_without_click, record.data_source) == (test_displays, 0, "real")


def test_held_out_displays_are_ranked_well_above_chance(raw, trained):
    clicks = read_clicks(raw)
    table = {}
    for seed, run in trained.items():
        held_out = set(displays_of(run.spec, "test"))
        rows = [row for row in clicks if row[0] in held_out]
        shows, hits = Counter(), Counter()
        for display, ad, clicked in clicks:
            if display not in held_out:
                shows[ad] += 1
                hits[ad] += clicked
        mean = sum(hits.values()) / sum(shows.values())
        baseline = map_at_12(rows, lambda ad, s=shows, h=hits, m=mean: (h[ad] + 20 * m) / (s[ad] + 20))
        chance = map_at_12(rows, lambda ad: 0)
        facts = run.spec.metadata["outbrain_sample"]
        assert facts["ctr_map_at_12"] == pytest.approx(baseline, abs=1e-3)
        assert facts["chance_map_at_12"] == pytest.approx(chance, abs=1e-9)
        table[seed] = (run.record.map_at_12, baseline, chance)
    model, baseline, chance = np.mean(list(table.values()), axis=0)
    print(f"MAP@12 of the model, of ads by click-through rate, of chance: {table}; means {model}, {baseline}, {chance}")
    assert chance == pytest.approx(0.48, abs=0.01)
    assert baseline >= 0.53
    assert model >= 0.53
    assert model >= baseline - 0.02


def test_permuted_training_labels_teach_nothing(raw, trained, tmp_path):
    clicks = read_clicks(raw)
    scores, chances = [], []
    for seed, run in trained.items():
        folder = tmp_path / str(seed)
        permute_clicks(raw, clicks, set(displays_of(run.spec, "train")), folder / "raw", seed)
        spec = sample.prepare(str(folder / "raw"), str(folder / "dataset"), seed=seed)
        for source, same in (("train", False), ("test", True)):
            before, after = (pq.read_table(s.source_files(source)[0], columns=["clicked"]) for s in (run.spec, spec))
            assert before.equals(after) is same
        scores.append(launch(*locations(folder / "dataset", folder, seed), *TRAINING).map_at_12)
        chances.append(spec.metadata["outbrain_sample"]["chance_map_at_12"])
    print(f"MAP@12 with permuted training labels: {scores}; chance {chances}")
    assert np.mean(scores) == pytest.approx(np.mean(chances), abs=0.05)


def permute_clicks(raw, clicks, displays, folder, seed):
    """The raw files again, the click of each of `displays` moved to a random ad of the same display."""
    rng = np.random.default_rng(seed)
    ads = defaultdict(list)
    for number, (display, _, _) in enumerate(clicks):
        ads[display].append(number)
    labels = np.array([clicked for _, _, clicked in clicks])
    for display in sorted(displays):
        labels[ads[display]] = rng.permutation(labels[ads[display]])
    folder.mkdir(parents=True)
    with open(folder / "clicks_train.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("display_id", "ad_id", "clicked"))
        writer.writerows((*row[:2], label) for row, label in zip(clicks, labels, strict=True))
    for name in ("events.csv", "promoted_content.csv"):
        shutil.copyfile(raw / name, folder / name)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restored_checkpoint_evaluates_the_same(trained, seed):
    run = trained[seed]
    where = locations(run.dataset, run.folder, seed)
    restored = launch(*where, *TRAINING, "--evaluate", "--use_checkpoint")
    assert figures(restored) == figures(run.record)
    untrained = launch(*where, *TRAINING, "--evaluate")
    assert untrained.log_loss != restored.log_loss


@pytest.mark.skipif(not os.path.exists(HOROVODRUN), reason="Horovod is not installed (HOROVOD=0)")
def test_two_ranks_learn_it_and_leave_a_checkpoint_that_evaluates_the_same(trained, tmp_path):
    dataset = trained[0].dataset
    where = locations(dataset, tmp_path, 0)
    printed = horovodrun(*where, *TRAINING)
    assert "2 ranks (Horovod over" in printed.splitlines()[0]
    with open(tmp_path / "results" / "result.json", encoding="utf-8") as file:
        result = json.load(file)
    assert (result["world_size"], result["displays"], result["data_source"]) == (2, 371, "real")
    assert result["map_at_12"] >= 0.53
    alone = figures(launch(*where, *TRAINING, "--evaluate", "--use_checkpoint"))
    # Ranks evaluate other parts of the rows, in batches of other shapes, whose products round differently.
    assert alone == pytest.approx({name: result[name] for name in FIGURES}, abs=1e-4)


def horovodrun(*arguments):
    """What `main.py` with these flags prints as two ranks."""
    command = [HOROVODRUN, "-np", "2", "sh", "hvd_wrapper.sh", sys.executable, "main.py", *arguments]
    job = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = job.communicate(timeout=240)
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    assert job.returncode == 0, out + err
    return out
