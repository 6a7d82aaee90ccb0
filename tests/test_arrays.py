"""Whatever people bring: the same rows at the same positions, the same numbers."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from foresee import InputError, View, arrays, mell
from foresee.arrays import Rows, rows, take
from foresee.testing import random_draws

N, D = 7, 3
X = np.random.default_rng(0).integers(1, 99, (N, D)).astype(np.float64)


class ByPosition:
    def __init__(self, frame):
        self.frame = frame

    def __getitem__(self, key):
        assert np.asarray(key).dtype.kind != "b", "masks are never passed on"
        return Frame(self.frame.values[key], self.frame.labels[key])


class Frame:
    """What matters of pandas: [] reads by label, iloc by position."""

    def __init__(self, values, labels):
        self.values, self.labels = values, np.asarray(labels)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return self.values[np.argsort(self.labels)[key]]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    @property
    def iloc(self):
        return ByPosition(self)


class Images(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        assert type(i) is int
        assert 0 <= i < N
        return torch.from_numpy(X[i])


def memmap(folder):
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


CONTAINERS = {
    "array": lambda: X,
    "columns first": lambda: np.asfortranarray(X),
    "backwards": lambda: X[::-1].copy()[::-1],
    "big-endian": lambda: X.astype(">f8"),
    "longdouble": lambda: X.astype(np.longdouble),
    "list": lambda: X.tolist(),
    "list of arrays": lambda: list(X),
    "list of tensors": lambda: list(torch.from_numpy(X)),
    "frame": lambda: Frame(X, np.arange(N)[::-1]),
    "csr": lambda: sparse.csr_array(X),
    "csc": lambda: sparse.csc_matrix(X),
    "coo": lambda: sparse.coo_matrix(X),
    "Dataset": Images,
    "Subset": lambda: Subset(Images(), range(N)),
    "Rows": lambda: Rows(np.repeat(X, 2, 0), np.arange(0, 2 * N, 2)),
    "Rows of Rows": lambda: Rows(Rows(X[::-1], np.arange(N)[::-1]), np.arange(N)),
    "Rows of a tensor": lambda: Rows(torch.from_numpy(X).requires_grad_(), np.arange(N)),
    "tensor": lambda: torch.from_numpy(X).requires_grad_(),
}

slices = st.slices(N)
positions = st.lists(st.integers(-N, N - 1), max_size=9).map(lambda x: np.array(x, np.int64))
masks = st.lists(st.booleans(), min_size=N, max_size=N).map(np.array)


def plain(part):
    """Numbers of a part, whatever holds it."""
    if isinstance(part, Subset):
        part = [item.numpy() for item in part]
    found = arrays.numpy(part)
    return found.reshape(-1, D) if found.size else np.empty((0, D))


@pytest.mark.parametrize("kind", CONTAINERS)
@given(key=slices | positions | masks | positions.map(torch.from_numpy) | masks.map(list))
def test_every_container_is_read_by_position(kind, key):
    found = rows("pool", CONTAINERS[kind]())
    if kind == "tensor" and isinstance(key, slice) and (key.step or 1) < 0:
        return  # torch says so itself
    expected = X[key.numpy() if isinstance(key, torch.Tensor) else key]
    if isinstance(key, torch.Tensor) and not isinstance(found, Rows):
        return  # NumPy reads a tensor of one position as an integer
    assert len(found) == N
    part = found[key]
    np.testing.assert_array_equal(plain(part), expected)
    assert (part.shape[0] if sparse.issparse(part) else len(part)) == len(expected)


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("position", [0, N - 1, -1, -N, np.int32(2)])
def test_an_integer_reads_one_row(kind, position):
    row = rows("pool", CONTAINERS[kind]())[position]
    row = row.toarray() if sparse.issparse(row) else arrays.numpy(row)
    np.testing.assert_array_equal(row.ravel(), X[position])


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("position", [N, -N - 1])
def test_beyond_the_last_row_is_an_error(kind, position):
    with pytest.raises(IndexError):
        rows("pool", CONTAINERS[kind]())[position]


def test_a_mask_is_never_read_as_positions():
    mask = np.array([False, True, False, False, True, False, True])
    for kind in CONTAINERS:
        np.testing.assert_array_equal(plain(rows("pool", CONTAINERS[kind]())[mask]), X[mask])
    with pytest.raises(IndexError):
        rows("pool", X.tolist())[mask[:-1]]


def test_parts_are_of_the_same_kind_as_the_whole():
    two = np.array([3, 1])
    for kind, part in (
        ("frame", Frame),
        ("csc", sparse.csr_matrix),
        ("csr", sparse.csr_array),
        ("list", list),
        ("Dataset", Dataset),
        ("Rows of a tensor", torch.Tensor),
    ):
        assert isinstance(rows("pool", CONTAINERS[kind]())[two], part)
        assert isinstance(rows("pool", CONTAINERS[kind]())[:], part)
    for kind in ("array", "tensor", "Rows", "big-endian"):
        whole = CONTAINERS[kind]()
        assert rows("pool", whole) is whole
    for whole in (X[:, 0], torch.ones(3), X[:0]):
        assert rows("pool", whole) is whole


def test_a_dataset_is_read_when_its_rows_are_asked_for():
    class Costly(Images):
        read = 0

        def __getitem__(self, i):
            Costly.read += 1
            return super().__getitem__(i)

    part = rows("pool", Costly())[2:5]
    assert Costly.read == 0
    np.testing.assert_array_equal(part[1], X[3])
    assert Costly.read == 1


def test_a_sparse_matrix_is_converted_once():
    class Counted(sparse.csc_matrix):
        converted = 0

        def tocsr(self, copy=False):
            Counted.converted += 1
            return super().tocsr(copy)

    found = rows("pool", Counted(X))
    for _ in range(3):
        found[np.array([1, 2])]
    assert Counted.converted == 1


def test_a_memmap_is_not_read_whole(tmp_path):
    mapped = memmap(tmp_path)
    assert rows("pool", mapped) is mapped
    with warnings.catch_warnings(action="error"):  # torch warns of read-only memory
        np.testing.assert_array_equal(arrays.tensor(mapped), X)


@pytest.mark.parametrize(
    ("inputs", "remedy"),
    [
        (None, "got NoneType: pass an array, a tensor"),
        ((x for x in X), "got generator: pass an array, a tensor"),
        ({}, "got dict: pass a list or a Dataset of such rows"),
        ((X, X), "got tuple: pass a list or a Dataset of such rows"),
        ("text", "got str: pass an array, a tensor"),
        (b"text", "got bytes: pass an array, a tensor"),
        ({1, 2}, "got set: pass an array"),
        (DataLoader(TensorDataset(torch.ones(3, 2))), "got DataLoader: pass its .dataset"),
        (np.float64(3), "got float64: pass an array"),
        (np.array(3), "got ndarray: pass one row for each example"),
        (torch.tensor(3), "got Tensor: pass one row for each example"),
    ],
)
def test_what_has_no_rows_is_refused_with_a_remedy(inputs, remedy):
    with pytest.raises(InputError, match=f"pool must hold rows that can be counted .*{remedy}"):
        rows("pool", inputs)


def test_columns_are_read_by_row():
    found = rows("pool", {"ids": X, "words": list("abcdefghij")[: len(X)]})
    assert len(found) == len(X)
    part = found[np.array([3, 1])]
    np.testing.assert_array_equal(part["ids"], X[[3, 1]])
    assert part["words"] == ["d", "b"]
    with pytest.raises(InputError, match=r"pool must hold columns of one length, got {'ids': "):
        rows("pool", {"ids": X, "mask": X[1:]})
    with pytest.raises(InputError, match=r"pool\['ids'\] must hold rows that can be counted"):
        rows("pool", {"ids": 1, "mask": 2})


def test_a_stream_is_refused_even_with_a_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(X)

        def __len__(self):
            return N

    with pytest.raises(InputError, match=r"got Stream: pass .* map-style Dataset"):
        rows("val", Stream())


def test_rows_become_an_array():
    np.testing.assert_array_equal(np.asarray(rows("pool", X.tolist())), X)
    np.testing.assert_array_equal(np.asarray(rows("pool", sparse.csr_matrix(X))), X)
    assert np.asarray(rows("pool", X.tolist()), np.float32).dtype == np.float32


def test_positions_of_a_part_are_checked():
    with pytest.raises(IndexError):
        take(X.tolist(), np.array([N]))


@pytest.mark.parametrize(
    "values",
    [
        X,
        X.astype(">f8"),
        X.astype("<f4"),
        X.astype(">f2"),
        X.astype(">i4"),
        X.astype(">i8"),
        X.astype(">u2"),
        3.0,
        X.astype(np.longdouble),
        X[::-1],
        X[:1][::-1],
        X[:, ::-2],
        X[:0],
        np.asfortranarray(X),
        np.broadcast_to(X[:1], X.shape),
        X > 40,
        X.tolist(),
        Frame(X, np.arange(N)[::-1]),
        sparse.csc_matrix(X),
        rows("pool", X.tolist()),
        torch.tensor(X, requires_grad=True),
        np.frombuffer(X.tobytes()).reshape(X.shape),
    ],
)
def test_numbers_of_any_form_become_tensors(values):
    with warnings.catch_warnings(action="error"):
        found = arrays.tensor(values)
    expected = arrays.numpy(values)
    assert not found.requires_grad
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(arrays.numpy(found), expected)
    if expected.dtype.itemsize <= 8:
        assert found.numpy().dtype == expected.dtype.newbyteorder("=")
    else:
        assert found.dtype == torch.float64


def test_memory_is_shared_where_it_can_be():
    assert np.shares_memory(arrays.tensor(X).numpy(), X)
    assert np.shares_memory(arrays.numpy(torch.from_numpy(X)), X)
    frozen = X.view()
    frozen.flags.writeable = False
    assert not np.shares_memory(arrays.tensor(frozen).numpy(), X)


def test_bfloat16_becomes_an_array():
    assert arrays.numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0], [1.0, 2.0]], "labels must be an array, got list: .*inhomogeneous"),
        (["a", "b"], "labels must be real numbers, got <U1: encode"),
        (None, "labels must be real numbers, got NoneType"),
        (X.astype(complex), "labels must be real numbers, got complex128"),
        (X.astype(np.clongdouble), "labels must be real numbers, got clongdouble|complex256"),
        (np.array([None, 1]), "labels must be real numbers, got ndarray"),
        (np.ma.masked_array(X, X > 40), "labels has masked entries: fill them"),
        ([torch.ones(1, requires_grad=True)], "labels must be an array, got list: .*detach"),
    ],
)
def test_what_is_no_number_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        arrays.tensor(values, "labels")


def test_a_mask_that_hides_nothing_is_no_obstacle():
    np.testing.assert_array_equal(arrays.tensor(np.ma.masked_array(X)), X)


class Nothing:
    predict = point = embed = None


def test_a_view_reads_by_position():
    frame = Frame(X, np.arange(N)[::-1])
    view = View(Nothing(), frame, Frame(np.arange(N), np.arange(N)[::-1]), frame, frame)
    for inputs in (view.labelled, view.pool, view.val):
        np.testing.assert_array_equal(plain(inputs[np.array([4, 0])]), X[[4, 0]])
    assert isinstance(view.labels, np.ndarray)
    assert view.labels[4] == 4
    assert isinstance(View(Nothing(), X, torch.arange(N), X, X).labels, torch.Tensor)


def test_a_view_needs_a_pool_but_no_target():
    assert View(Nothing(), None, None, X, None).val is None
    with pytest.raises(InputError, match=r"pool must hold rows .* got NoneType"):
        View(Nothing(), X, np.zeros(N), None, X)
    with pytest.raises(InputError, match=r"val must hold rows .* got DataLoader"):
        View(Nothing(), X, np.zeros(N), X, DataLoader(TensorDataset(torch.ones(3, 2))))


def test_every_row_of_a_view_has_its_label():
    with pytest.raises(InputError, match=r"labels must be one for each of the 7 rows .* got 3"):
        View(Nothing(), X, np.zeros(3), X, X)
    for labels in (None, 7, torch.tensor(7)):  # none, and one that is as many as the rows
        with pytest.raises(InputError, match=r"labels must be one for each of the 7 rows .* got"):
            View(Nothing(), X, labels, X, X)


def test_pandas():
    pd = pytest.importorskip("pandas")
    order = np.random.default_rng(1).permutation(N)
    key = np.array([5, 0, -1])
    for labels in (order, list("gfedcba")):
        frame = pd.DataFrame(X, index=labels)
        found = rows("pool", frame)[key]
        assert isinstance(found, pd.DataFrame)
        np.testing.assert_array_equal(found.to_numpy(), X[key])
        series = rows("pool", pd.Series(X[:, 0], index=labels))
        np.testing.assert_array_equal(series[key], X[key, 0])
        np.testing.assert_array_equal(series[X[:, 0] > 40], X[X[:, 0] > 40, 0])
        np.testing.assert_array_equal(series[1:3], X[1:3, 0])
        assert series[2] == X[2, 0]
        np.testing.assert_array_equal(rows("pool", frame)[2], X[2])
        np.testing.assert_array_equal(arrays.tensor(frame), X)
    pool, val = (random_draws(np.random.default_rng(s), 5, 4, 3) for s in (0, 1))
    columns = pd.Series(list(pool), index=order[:5])
    np.testing.assert_array_equal(mell(columns.tolist(), val), mell(pool, val))
