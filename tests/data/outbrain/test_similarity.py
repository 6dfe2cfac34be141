import math

import numpy as np
import pytest

from data.outbrain.similarity import TagVectors


def cosines(vectors):
    """(documents + 1, documents + 1)."""
    matrix = vectors.matrix.toarray().astype(np.float64)
    return matrix @ matrix.T


def test_by_hand():
    # Tag 7 is on two of three documents, tag 8 on one, tag 9 on all: weights ln 1.5, ln 3 and 0.
    documents, tags = np.array([5, 5, 2, 2, 9, 9, 5]), np.array([7, 8, 7, 9, 9, 9, 9])
    confidences = np.array([0.5, 1.0, 0.25, 1.0, 0.5, 0.5, 0.3])
    vectors = TagVectors.of_tags(documents, tags, confidences)
    assert vectors.documents.tolist() == [2, 5, 9] and vectors.matrix.shape == (4, 3)
    found = cosines(vectors)
    a, b = 0.5 * math.log(1.5), 1.0 * math.log(3)
    assert found[0, 1] == pytest.approx(a / math.hypot(a, b), abs=1e-6)
    assert found[0, 0] == pytest.approx(1) and found[1, 1] == pytest.approx(1)
    # Document 9 has only the tag of all; the last row stands for documents that are not known.
    assert not found[2].any() and not found[3].any()


def test_against_dense_matrices():
    rng = np.random.default_rng(0)
    documents, tags, confidences = rng.integers(0, 30, 200), rng.integers(100, 115, 200), rng.random(200)
    vectors = TagVectors.of_tags(documents, tags, confidences)
    keys = np.unique(documents)
    dense = np.zeros((len(keys), 15))
    for document, tag, confidence in zip(documents, tags, confidences, strict=True):
        dense[np.searchsorted(keys, document), tag - 100] += confidence
    dense *= np.log(len(keys) / (dense > 0).sum(axis=0))
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines(vectors)[:-1, :-1], dense @ dense.T, atol=1e-6)
    assert vectors.matrix.dtype == np.float32 and vectors.documents.tolist() == keys.tolist()
