"""A machine-learning backend for Label Studio: its tasks, in the order of what their labels tell.

`form` reads the project's labelling interface, `api` asks Label Studio, `shelf` keeps a copy of the
tasks and the last ranking, `rank` fits in a process of its own, `backend` brings these together
whenever something changed, and `server` is what Label Studio talks to.

Label Studio alone knows the annotations: they are read from it, and never from what is sent here,
so that deliveries that come twice, late or not at all change nothing.
"""
