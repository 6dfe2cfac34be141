import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks import compare_peers, peer_rows, products, step_profile, torch_peer, workloads
from benchmarks.comparison import measure
from benchmarks.our_steps import OurSteps, RMSpropBesideSGD, as_tensors, drawn, endless, weights
from benchmarks.peer_rows import Settings
from data.flat_spec import flat_spec
from data.id_draw import IdDraw
from trainer.distributed import SingleProcess
from trainer.optimizers import SGD, RMSprop

TINY = Settings(runs=1, threads=1, shrink=256, say=lambda line: None)
needs_torch = pytest.mark.skipif(not torch_peer.is_installed(), reason=torch_peer.NOT_INSTALLED)


@pytest.fixture(scope="module")
def wide_deep():
    return workloads.wide_deep(shrink=256)


@pytest.fixture(scope="module", params=["distinct", "fixed"])
def dlrm(request):
    return workloads.dlrm_tiny(request.param, shrink=16)


def lists(workload, batch):
    """Feature -> the ids of each row, read off the packed ids."""
    found, column = {}, 0
    for name in workload.spec.categorical:
        hotness = workload.spec.features[name].max_hotness
        found[name] = [[i for i in row if i >= 0] for row in batch["ids"][:, column : column + hotness].tolist()]
        column += hotness
    return found


# Workloads.


def test_full_sizes_are_those_of_the_reference():
    workload = workloads.wide_deep()
    dims = peer_rows.embedding_dims(workload)
    assert sum(dims.values()) == 1235 and len(workload.spec.numerical) == 13
    assert workload.batch_size == 4096 and workload.config.model.deep_hidden_units == (1024,) * 5
    assert workload.config.model.deep_dropout == 0.1 and workload.learning_rates == {"wide": 0.02, "deep": 0.00012}
    tiny = workloads.dlrm_tiny("fixed")
    assert [tiny.spec.features[name].cardinality for name in tiny.spec.categorical] == [1_000_000] * 8
    assert tiny.batch_size == 64 and tiny.spec.total_hotness == 800 and tiny.draw == IdDraw(0.0, "fixed")
    assert tiny.learning_rates == {"main": 0.01}


def test_criteos_tables_are_cut_to_what_is_asked_for():
    spec = workloads.dlrm_criteo(table_bytes=2 << 30).spec
    cardinalities = [spec.features[name].cardinality for name in spec.categorical]
    size = 4 * 128 * sum(cardinalities)
    assert 0.999 * (2 << 30) < size <= 2 << 30
    assert len(cardinalities) == 26 and cardinalities[5] == 4 and cardinalities[1] == 33823


def test_tables_grow_and_nothing_else(wide_deep):
    large = workloads.wide_deep(shrink=256, grow=10)
    assert large.config == wide_deep.config
    assert large.spec.features["document_id"].cardinality == 3_000_000 // 256


def test_batches_are_distinct_and_their_ids_in_range(wide_deep, dlrm):
    for workload in (wide_deep, dlrm):
        batches = workload.batches(20)
        assert len({batch["ids"].tobytes() for batch in batches}) == 20
        for batch in batches:
            assert batch["ids"].dtype == np.int32 and batch["numerical"].dtype == np.float32
            for name, rows in lists(workload, batch).items():
                assert max(map(max, filter(None, rows))) < workload.spec.features[name].cardinality
    assert all(np.array_equal(a["ids"], b["ids"]) for a, b in zip(dlrm.batches(3), dlrm.batches(3), strict=True))


def test_pooling_is_as_asked_for(dlrm):
    lookups = [row for batch in dlrm.batches(8) for rows in lists(dlrm, batch).values() for row in rows]
    assert all(len(set(row)) == len(row) for row in lookups)
    lengths = {len(row) for row in lookups}
    assert lengths == {100} if dlrm.draw.pooling == "fixed" else min(lengths) < 10 < 90 < max(lengths)


def test_displays_are_not_cut_by_batches_into_others(wide_deep):
    ids = np.concatenate([batch["group_ids"] for batch in wide_deep.batches(4)])
    assert np.array_equal(ids, np.arange(len(ids)) // 5)


def test_drawn_batches_go_on_and_on(dlrm):
    first, second = itertools.islice(drawn(dlrm), 2)
    assert not np.array_equal(first["ids"], second["ids"])
    assert not np.array_equal(first["numerical"], second["numerical"])


# Our steps.


def test_ours_trains_and_scores_as_many_samples_as_it_says(dlrm):
    ours, batches = OurSteps(dlrm), dlrm.batches(3)
    before = ours.state.dense()[0][1].numpy()
    samples, seconds = ours.trains(endless(batches), 2)()
    assert samples == 2 * dlrm.batch_size and seconds > 0 and int(ours.state.applied_steps.numpy()) == 2
    assert not np.array_equal(before, ours.state.dense()[0][1].numpy())
    assert ours.scores(endless(batches), 3, with_metrics=True)()[0] == 3 * dlrm.batch_size
    assert OurSteps(dlrm, training=False).state is None


def test_rmsprop_beside_sgd():
    import tensorflow as tf

    mixed, plain = RMSpropBesideSGD(0.1, 1e-3), RMSprop(rho=0.5, epsilon=1e-6)
    gradient = tf.constant([[1.0, -2.0]])
    one, two, table, other = (tf.Variable([[1.0, 2.0]]) for _ in range(4))
    sgd = SGD()
    for optimizer, variable, is_table in (
        (mixed, one, False),
        (plain, two, False),
        (mixed, table, True),
        (sgd, other, True),
    ):
        optimizer.create_slots(variable, is_table=is_table)
    for optimizer, variable in ((mixed, one), (plain, two)):
        optimizer.apply_dense(variable, gradient, tf.constant(0.1), tf.constant(0))
    for optimizer, variable in ((mixed, table), (sgd, other)):
        optimizer.apply_rows(variable, tf.constant([0]), gradient, tf.constant(0.1), tf.constant(0))
    np.testing.assert_array_equal(one.numpy(), two.numpy())
    np.testing.assert_array_equal(table.numpy(), other.numpy())
    assert not np.array_equal(one.numpy(), table.numpy())


# Peers.


@needs_torch
def test_torchs_wide_deep_is_ours(wide_deep):
    batches = wide_deep.batches(peer_rows.AGREEMENT_STEPS)
    peer, disagreement = peer_rows._torch_trained_as_ours(wide_deep, batches, TINY)
    assert disagreement == ""
    dropout = [module.p for module in peer.model.modules() if type(module).__name__ == "Dropout"]
    assert dropout == [0.1] * 5


@needs_torch
def test_torchs_dlrm_is_ours(dlrm):
    ours, peer, disagreement = peer_rows._both_dlrm(dlrm, TINY)
    assert disagreement == "" and ours.workload == dlrm
    batch = dlrm.batches(1, seed=3)[0]
    logits = ours.eval_step(as_tensors([batch])[0]).numpy()
    np.testing.assert_allclose(peer._logits(peer.prepare(batch)).detach().numpy(), logits, rtol=1e-4, atol=1e-6)


@needs_torch
def test_a_torch_that_learns_otherwise_is_seen(dlrm):
    ours = OurSteps(dlrm)
    peer = torch_peer.TorchPeer(dlrm.changed(learning_rate=0.02), weights(ours.model))
    batches = dlrm.batches(20, seed=2)
    assert "at step" in peer_rows.disagreement_of(ours.losses(batches), peer.losses(batches), peer_rows.SGD_AGREEMENT)


@needs_torch
def test_fambenchs_way_of_drawing(dlrm):
    batches = list(itertools.islice(torch_peer.drawn_as_fambench(dlrm), 4))
    lengths = []
    for batch in batches:
        for name, (ids, offsets) in batch["lookups"].items():
            bags = np.split(ids.numpy(), offsets.numpy()[1:])
            assert len(bags) == dlrm.batch_size
            assert all(len(set(bag)) == len(bag) for bag in bags)
            assert ids.min() >= 0 and ids.max() < dlrm.spec.features[name].cardinality
            lengths += map(len, bags)
    assert min(lengths) >= 1 and max(lengths) <= 100
    assert min(lengths) > 95 if dlrm.draw.pooling == "fixed" else np.mean(lengths) < 60
    peer = torch_peer.TorchPeer(dlrm, weights(OurSteps(dlrm).model))
    assert peer.trains(itertools.cycle(batches), 2)()[0] == 2 * dlrm.batch_size
    assert peer.scores(itertools.cycle(batches), 3)()[0] == 3 * dlrm.batch_size


def test_products_are_those_of_the_hidden_layers(monkeypatch):
    monkeypatch.setattr(torch_peer, "is_installed", lambda: False)
    seen = []

    def multiply(a, b, left, right):
        seen.append(np.matmul(a.T if left else a, b.T if right else b).shape)

    monkeypatch.setattr(products, "_numpy", lambda: (multiply, np.array))
    found = products.contenders(4, [(5, 6), (6, 7)], 1, gradients=True)
    assert list(found) == ["TensorFlow", "numpy"]
    assert found["numpy"]()[0] == 4 and found["TensorFlow"]()[0] == 4
    assert seen == [(4, 6), (4, 5), (5, 6), (4, 7), (4, 6), (6, 7)]
    assert (
        products.flops(4, [(5, 6), (6, 7)], gradients=True)
        == 3 * products.flops(4, [(5, 6), (6, 7)], gradients=False)
        == 3 * 576
    )


# Rows and profile.


def test_a_row_of_training_at_tiny_size():
    rows = peer_rows.table_size(TINY)
    assert [row.name for row in rows] == ["table_size: Outbrain's tables", "table_size: tables 10 times larger"]
    assert rows[1].ratio == pytest.approx(rows[0].figure / rows[1].figure) and rows[1].at_most


@needs_torch
def test_rows_of_the_data_in_the_loop_have_both_poolings():
    rows = peer_rows.dlrm_data_in_loop(dataclasses.replace(TINY, shrink=64))
    assert [row.name.split(", ")[1] for row in rows] == [
        "distinct: ours",
        "distinct: PyTorch",
        "fixed: ours",
        "fixed: PyTorch",
    ]
    assert all(row.figure > 0 for row in rows) and {row.target for row in rows} == {None, 2.0}


def test_a_step_is_taken_apart_and_traced(dlrm, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = step_profile.profile(dlrm, SingleProcess(), first=2, last=3, rank=0, folder=str(tmp_path / "trace"))
    parts = [line.rsplit(maxsplit=3)[0].strip() for line in text.splitlines()[:-1]]
    assert parts == ["input", "gather", "dense", "row gradients", "reduction", "update", "whole step"]
    assert "trace of steps 2 to 3" in text
    assert list((tmp_path / "trace").glob("plugins/profile/*/*.xplane.pb"))


def test_the_command_profiles_the_step_of_a_row(monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr(compare_peers, "_prepare", lambda threads: seen.update(threads=threads))
    monkeypatch.setattr(step_profile, "profile", lambda workload, comm, **given: seen.update(given) or "taken apart")
    arguments = ["--profile=5:8", "--rows=dlrm_training", "--threads=1", "--profile_dir=x", "--shrink=64"]
    assert compare_peers.main(arguments) == 0
    assert capsys.readouterr().out == "taken apart\n"
    assert (seen["first"], seen["last"], seen["rank"], seen["threads"]) == (5, 8, 0, 1)
    assert compare_peers.main([*arguments, "--profile_rank=1"]) == 2
    assert "there are ranks 0 to 0" in capsys.readouterr().err


def test_speeds_of_keras_count_samples(wide_deep):
    from benchmarks.keras_peer import KerasPeer

    # Two features: Keras takes seconds to trace sixteen.
    small = dataclasses.replace(wide_deep, spec=flat_spec([50, 20], [1, 3], 4))
    keras = KerasPeer(small, small.batches(3), peer_rows.embedding_dims(small), jit_compile=False)
    before = [weight.numpy() for weight in keras.model.trainable_variables]
    assert keras.trains(2)()[0] == 2 * small.batch_size and keras.scores(2)()[0] == 2 * small.batch_size
    changed = [not np.array_equal(a, b.numpy()) for a, b in zip(before, keras.model.trainable_variables, strict=True)]
    assert sum(changed) > len(changed) / 2
    assert measure({"fit": keras.trains(2)}, 1)["fit"][0] > 0
