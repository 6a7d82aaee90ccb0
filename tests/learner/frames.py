"""What matters of a frame of pandas, which not every environment has."""

import numpy as np


class Index(list):
    is_unique = True


class Frame:
    """Rows with an index: that of row numbers where none is given."""

    def __init__(self, values, index=None):
        self.values = self.iloc = values
        self.index = Index(range(len(values)) if index is None else index)
        if index is None:
            self.index.start, self.index.stop, self.index.step = 0, len(values), 1

    def __len__(self):
        return len(self.values)

    def __getitem__(self, column):
        raise KeyError(column)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


class Table(Frame):
    """A frame whose columns have names."""

    def __init__(self, values, columns):
        super().__init__(values)
        self.columns = columns

    def __getitem__(self, columns):
        places = [self.columns.index(each) for each in columns]
        return Table(self.values[:, places], columns)


class Series(list):
    """A column with an index."""

    iloc = None

    def __init__(self, values, index):
        super().__init__(values)
        self.index = index
