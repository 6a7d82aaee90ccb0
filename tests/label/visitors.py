"""A site to visit, and who visits it."""

import itertools

import numpy as np
from starlette.testclient import TestClient

from foresee.label.book import Book
from foresee.label.fitter import Fitter
from foresee.label.items import Items, Spec
from foresee.label.server import application

TOKEN = "a-token-for-the-tests"
PORT = 8000
HERE = f"http://127.0.0.1:{PORT}"
N = 30
KEYS = itertools.count()


class Site:
    """A server without a fitting process: all items come by chance."""

    def __init__(self, folder, **options):
        self.out = folder.parent / "labels.csv"
        self.spec = Spec(str(folder), **{"holdout": 0.0, **options})
        self.start()

    def start(self):
        self.book = Book(Items(self.spec), self.out, ["cat", "dog"])
        self.fitter = Fitter(self.book, patience=0.0)
        self.app = application(self.book, self.fitter, TOKEN, "127.0.0.1", PORT)

    def restart(self):
        """As after a kill: nothing that was in memory is left."""
        self.book.close()
        self.start()

    def stranger(self, **options):
        return TestClient(self.app, HERE, follow_redirects=False, **options)

    def person(self, name="ann", tab=None):
        return Person(self, name, tab or f"tab-of-{name}".replace(" ", "-"))

    def rows(self):
        lines = self.out.read_text().splitlines()
        assert lines[0] == "id,label,time,who"
        return [tuple(np.array(line.split(","))[[0, 1, 3]].tolist()) for line in lines[1:]]


class Person:
    """Somebody with the token and a name."""

    def __init__(self, site, name, tab):
        self.site, self.tab = site, tab
        self.client = site.stranger()
        assert self.client.get(f"/?token={TOKEN}").status_code == 303
        if name:
            assert self.post("/name", name=name).status_code == 200

    def post(self, path, **body):
        return self.client.post(path, json=body, headers={"Origin": HERE})

    def next(self, size=6):
        return self.post("/next", tab=self.tab, size=size).json()["items"]

    def key(self):
        return f"key-number-{next(KEYS)}"

    def label(self, items, label=None, **more):
        items = [items] if isinstance(items, int) else items
        told = {"label": label} if label else {}
        body = {"tab": self.tab, "key": self.key(), "edition": self.site.book.items.edition}
        return self.post("/label", **body | {"items": items} | told | more)

    def undo(self, items, **more):
        items = [items] if isinstance(items, int) else items
        body = {"tab": self.tab, "key": self.key(), "edition": self.site.book.items.edition}
        return self.post("/undo", **body | {"items": items} | more)
