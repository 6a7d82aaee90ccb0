"""The labelling page: a person, a browser and a learner on one machine.

`items` knows what there is to label, `book` keeps what people answer, `work` fits the model in a
process of its own, `fitter` talks to that process, and `server` is the page's only door.
"""
