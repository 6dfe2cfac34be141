"""How much two documents have in common: the cosine of their tf-idf vectors of categories, topics or entities."""

import dataclasses

import numpy as np
import scipy.sparse


@dataclasses.dataclass(frozen=True)
class TagVectors:
    """Vectors of length 1 of documents.

    The component of a tag is the document's confidence in it (the sum, where it is there several times) times
    ln(documents / documents that have the tag). A document whose tags all documents have has the vector 0.

    Attributes:
      documents: ascending ids, (documents,) int64.
      matrix: (documents + 1, tags) float32 in CSR form; the last row is 0.
    """

    documents: np.ndarray
    matrix: scipy.sparse.csr_matrix

    @classmethod
    def of_tags(cls, documents: np.ndarray, tags: np.ndarray, confidences: np.ndarray) -> "TagVectors":
        """From (document, tag, confidence) triples, three arrays of one length, in any order."""
        keys, rows = np.unique(documents, return_inverse=True)
        names, columns = np.unique(tags, return_inverse=True)
        counts = scipy.sparse.coo_matrix((confidences, (rows, columns)), shape=(len(keys) + 1, len(names))).tocsr()
        idf = np.log(len(keys) / np.bincount(counts.indices, minlength=len(names)))
        weights = counts.data * idf[counts.indices]
        sizes = np.diff(counts.indptr)
        lengths = np.sqrt(np.bincount(np.repeat(np.arange(len(keys) + 1), sizes), weights**2, minlength=len(keys) + 1))
        weights /= np.repeat(np.where(lengths > 0, lengths, 1.0), sizes)
        matrix = scipy.sparse.csr_matrix((weights.astype(np.float32), counts.indices, counts.indptr), counts.shape)
        return cls(keys, matrix)
