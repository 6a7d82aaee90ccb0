"""The first batch, when no label tells anything yet: points that cover the target.

`foresee.herd` picks them by raw features, which need no model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from foresee import arrays
from foresee.errors import InputError
from foresee.strategies import herd
from foresee.training import stacked, unlabelled

# Where a script leaves no space between words (Thai to Khmer, Japanese, Chinese) each letter is
# one; elsewhere they are scikit-learn's own, of two letters at least.
_SOLID = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
WORD = rf"[^\W{_SOLID}]{{2,}}|[{_SOLID}]"

_SIDE = 8  # images are looked at from afar
_AXES = 32  # features that are kept
_WORDS = 1 << 12  # words that are told apart
_PART = 256  # rows that are read at once


def spread(pool: Any, target: Any, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions in the pool [size] of points that cover the target, copies last.

    Args:
        pool: rows to choose from: texts, numbers, images, a frame or a sparse matrix. Of anything
            else nothing is known, and the choice is left to chance.
        target: rows of the same kind.
        size: how many.
        rng: decides between equals.

    >>> x = np.repeat(np.eye(3), 4, axis=0)
    >>> sorted(x[spread(x, x, 3, np.random.default_rng(0))].argmax(1).tolist())
    [0, 1, 2]
    """
    n, found = len(pool), features(pool, target)
    if found is None:
        return rng.choice(n, size, replace=False)
    points, goals = found[:n], found[n:]
    # Equal rows have one label: copies come when all others are taken.
    kinds = np.sort(np.unique(points, axis=0, return_index=True)[1])
    picks = kinds[herd(points[kinds], goals, min(size, len(kinds)), rng)]
    left = np.setdiff1d(np.arange(n), picks)
    return np.concatenate([picks, rng.choice(left, size - len(picks), replace=False)])


def features(*parts: Any) -> NDArray[np.float32] | None:
    """Raw features of rows of one kind [n d], d at most 32; None where nothing is known of them."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import StandardScaler

    tables = [
        _table(part[start : start + _PART])
        for part in parts
        for start in range(0, len(part), _PART)
    ]
    if any(table is None for table in tables):
        return None
    widths = sorted({table.shape[1] for table in tables})
    if len(widths) > 1:
        raise InputError(
            f"target must have the columns of pool, got rows of {widths[0]} and of {widths[1]} "
            "numbers: pass rows of the same kind"
        )
    if hasattr(tables[0], "tocsr"):
        table = scipy.sparse.vstack(tables).tocsr()
        if isinstance(parts[0][:1], list):
            table = TfidfTransformer().fit_transform(table)
    else:
        table = np.concatenate(tables)
        if not _is_picture(parts[0][:1]):
            table = np.nan_to_num(StandardScaler().fit_transform(table))
        elif not np.isfinite(table).all():
            raise InputError(
                "images of the pool or the target hold NaN or infinity: mend them or leave them out"
            )
    if table.shape[1] > _AXES:
        axes = max(1, min(_AXES, min(table.shape) - 1))
        with np.errstate(divide="ignore", invalid="ignore"):  # where all rows are alike
            table = TruncatedSVD(axes, random_state=0).fit_transform(table)
    dense = table.toarray() if hasattr(table, "toarray") else table
    return np.asarray(dense, np.float32)


def _table(rows: Any) -> Any:
    """Numbers [n d], dense or sparse; None where rows cannot be read so."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.feature_extraction.text import HashingVectorizer

    if hasattr(rows, "tocsr"):
        return rows.astype(np.float32)
    if hasattr(rows, "select_dtypes"):  # a frame of numbers and words
        words = rows.select_dtypes(exclude="number").astype(str).to_dict("records")
        hashed = FeatureHasher(_AXES).transform(words).toarray()
        return np.column_stack([rows.select_dtypes("number").to_numpy(np.float64), hashed])
    if arrays.is_polars(rows):
        numeric = [name for name in rows.columns if rows[name].dtype.is_numeric()]
        words = [
            {k: str(v) for k, v in row.items()}
            for row in rows.select([c for c in rows.columns if c not in numeric]).to_dicts()
        ]
        hashed = FeatureHasher(_AXES).transform(words or [{}] * len(rows)).toarray()
        return np.column_stack([rows.select(numeric).to_numpy().reshape(len(rows), -1), hashed])
    if not isinstance(rows, np.ndarray | Tensor):
        rows = unlabelled(rows.tolist() if hasattr(rows, "tolist") else rows)
    if isinstance(rows, list) and isinstance(rows[0], str):
        words = HashingVectorizer(n_features=_WORDS, alternate_sign=False, token_pattern=WORD)
        return words.transform(rows)
    if isinstance(rows, Mapping):
        return None
    try:
        x = stacked(rows)
    except InputError:
        return None
    if _is_picture(x):
        x = adaptive_avg_pool2d(x.float(), _SIDE)
    return x.reshape(len(x), -1).double().cpu().numpy()


def _is_picture(rows: Any) -> bool:
    return getattr(rows, "ndim", 0) == 4
